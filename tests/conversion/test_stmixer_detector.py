"""Conversion of STMixer's whole detector: outputs, losses, matches and gradients of the original."""

import json
from datetime import datetime
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForObjectDetection, AutoVideoProcessor

from conversion.helpers.fields import make_config
from conversion.helpers.weight_rules import apply_rules, load_converted
from conversion.stmixer import detector_fields, detector_rules, main
from hf_video import STMixerConfig, STMixerForActionDetection, VideoDetectionProcessor, VideoViTBackbone
from tests.testing.goldens import FIXTURES, load_golden

CASES = ["detector_inference", "detector_padded", "detector_training"]
# Absolute bounds of logits and of boxes in pixels. In double precision the original still makes tables in float32.
TOLERANCES = {torch.float32: (2e-4, 2e-3), torch.float64: (1e-9, 1e-8)}
NAMES = {"logits": "class_logits", "action_logits": "action_logits", "pred_boxes": "boxes"}
FULL_SIZE = json.loads((FIXTURES / "stmixer" / "full_size_keys.json").read_text())
CHECKPOINT = FIXTURES / "stmixer" / "training_checkpoint"


def convert(checkpoint, folder, config=None, *words):
    """The folder of a converted detector."""
    words = [str(checkpoint), str(folder / "model"), "--task", "action-detection", *words]
    if config is not None:
        (folder / "original.json").write_text(json.dumps(config))
        words += ["--original-config", str(folder / "original.json")]
    main(words, raises_errors=True)
    return folder / "model"


@pytest.fixture(scope="module")
def goldens(tmp_path_factory):
    """Of each case the golden and the folder of its model."""
    found = {}
    for case in CASES:
        golden = load_golden("stmixer", case)
        sections = {"ViT": golden.config["cfg.ViT"], "STM": golden.config["cfg.MODEL.STM"]}
        found[case] = golden, convert(golden.folder / "checkpoint.pth", tmp_path_factory.mktemp(case), sections)
    return found


def run(golden, model, with_labels=False):
    """The outputs for a golden's inputs, and the predictions of all layers."""
    clips, sizes = golden.inputs["pixel_values"], golden.inputs["whwh"][:, [1, 0]]
    labels = None
    if with_labels:
        names = {"boxes": "boxes", "class_labels": "action_labels"}
        labels = [
            {name: golden.inputs[f"target.{clip}.{theirs}"] for name, theirs in names.items()}
            for clip in range(len(clips))
        ]
    outputs = model(clips.to(model.dtype).transpose(1, 2), original_sizes=sizes, labels=labels)
    return outputs, [*outputs.auxiliary_outputs, {name: outputs[name] for name in NAMES}]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", CASES)
def test_every_layer_equals_the_original(goldens, case, dtype):
    golden, folder = goldens[case]
    expected = golden.expected_under("" if dtype == torch.float32 else "float64.")
    model = AutoModelForObjectDetection.from_pretrained(folder).to(dtype)
    with torch.no_grad():
        outputs, layers = run(golden, model)
    assert outputs.loss is None and len(layers) == golden.config["cfg.MODEL.STM"]["NUM_STAGES"]
    for number, predictions in enumerate(layers):
        for name, theirs in NAMES.items():
            actual, key = predictions[name], f"stage.{number}.{theirs}"
            assert actual.dtype == dtype
            if key in expected:
                atol = TOLERANCES[dtype][name == "pred_boxes"]
                torch.testing.assert_close(actual, expected[key], atol=atol, rtol=atol, msg=f"{key} differs")


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_losses_and_gradients_equal_the_original(goldens, dtype):
    golden, folder = goldens["detector_training"]
    model = AutoModelForObjectDetection.from_pretrained(folder).to(dtype).train()
    outputs, layers = run(golden, model, with_labels=True)
    for name, loss in outputs.loss_dict.items():
        kind, layer = [*name.split("_"), str(len(layers) - 1)][1:3]
        torch.testing.assert_close(
            loss, golden.expected[f"unweighted.stage.{layer}.loss_{kind}"].to(dtype), rtol=1e-5, atol=0, msg=name
        )
    assert len(outputs.loss_dict) == 4 * len(layers)
    prefix = "" if dtype == torch.float32 else "float64."
    torch.testing.assert_close(outputs.loss, golden.expected[f"{prefix}loss.total"], rtol=1e-6, atol=0)
    outputs.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    theirs = golden.expected_under("grad.")
    for name, expected in apply_rules(theirs, detector_rules(model.config)).items():
        assert (gradients[name] - expected).abs().max() < 1e-4 * expected.abs().max()
    norm = torch.stack([each.norm() for each in gradients.values()]).norm()
    rtol = 1e-5 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(norm, golden.expected[f"{prefix}grad_norm.all"], rtol=rtol, atol=0)


def test_a_training_checkpoint_is_read_without_the_class_that_it_holds(tmp_path):
    folder = convert(CHECKPOINT / "checkpoint.pth", tmp_path, {"ViT": {"NUM_HEADS": 2}})
    model = STMixerForActionDetection.from_pretrained(folder)
    weights = load_file(CHECKPOINT / "expected.safetensors")
    for name, tensor in apply_rules(weights, detector_rules(model.config)).items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert model.config.loss_weights == {"ce": 2, "bbox": 2, "giou": 2, "bce": 24}
    assert model.config.background_weight == 0.1
    assert model.config.strides == [4, 8, 16, 32] and model.config.backbone_config.patch_size == 4


def touch(name):
    Path(name).touch()


class Meter:
    """A class of a training script; to read it would leave a mark."""

    def __init__(self, mark):
        self.mark, self.state = mark, {"best": 0.5}

    def __reduce__(self):
        return touch, (str(self.mark),), self.state


def test_other_classes_beside_the_weights_are_skipped_and_nothing_runs(tmp_path):
    weights = load_file(CHECKPOINT / "expected.safetensors")
    mark, file = tmp_path / "mark", tmp_path / "checkpoint.pth"
    meters = {"meter": Meter(mark), "time": datetime(2026, 1, 1), "place": {datetime(2026, 1, 1): Meter(mark)}}
    torch.save({"model": weights, **meters}, file)
    model = STMixerForActionDetection.from_pretrained(convert(file, tmp_path, {"ViT": {"NUM_HEADS": 2}}))
    assert torch.equal(model.backbone.videovit.layernorm.weight, weights["backbone.norm.weight"])
    torch.save({"model": weights | {"meter": Meter(mark)}}, file)
    second = tmp_path / "second"
    second.mkdir()
    with pytest.raises(ValueError, match="objects of classes that are not read: meter"):
        convert(file, second, {"ViT": {"NUM_HEADS": 2}})
    assert not mark.exists()


def test_the_threshold_of_persons_is_that_of_the_original_configuration(tmp_path):
    folder = convert(
        CHECKPOINT / "checkpoint.pth", tmp_path, {"ViT": {"NUM_HEADS": 2}, "STM": {"PERSON_THRESHOLD": 0.8}}
    )
    assert AutoVideoProcessor.from_pretrained(folder).person_threshold == 0.8


def test_without_the_task_the_result_is_the_backbone(tmp_path):
    (tmp_path / "original.json").write_text(json.dumps({"NUM_HEADS": 2}))
    words = [str(CHECKPOINT / "checkpoint.pth"), str(tmp_path / "model")]
    main([*words, "--original-config", str(tmp_path / "original.json")], raises_errors=True)
    backbone = VideoViTBackbone.from_pretrained(tmp_path / "model")
    weights = load_file(CHECKPOINT / "expected.safetensors")
    assert torch.equal(backbone.videovit.layernorm.weight, weights["backbone.norm.weight"])


def test_names_of_actions_come_from_a_label_map_or_a_list(tmp_path):
    map_file, list_file = tmp_path / "map.pbtxt", tmp_path / "names.txt"
    map_file.write_text('item { name: "walk" id: 1 }\nitem { name: "sit" id: 3 }\n')
    list_file.write_text("a\nb\nc\nd\n")
    for number, words in enumerate((["--label-map", str(map_file)], ["--labels", str(list_file)])):
        folder = tmp_path / str(number)
        folder.mkdir()
        convert(CHECKPOINT / "checkpoint.pth", folder, {"ViT": {"NUM_HEADS": 2}}, *words)
    models = [AutoModelForObjectDetection.from_pretrained(tmp_path / str(number) / "model") for number in range(2)]
    assert models[0].config.id2label == {0: "walk", 1: "LABEL_1", 2: "sit", 3: "LABEL_3"}
    assert list(models[1].config.label2id) == ["a", "b", "c", "d"]
    processor = AutoVideoProcessor.from_pretrained(tmp_path / "0" / "model")
    assert type(processor) is VideoDetectionProcessor and processor.frame_sampling_rate == 4
    map_file.write_text('item { name: "walk" id: 5 }\n')
    with pytest.raises(ValueError, match="names 5, and the actions are 1 to 4"):
        convert(CHECKPOINT / "checkpoint.pth", tmp_path, {"ViT": {"NUM_HEADS": 2}}, "--label-map", str(map_file))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"STM": {"NUM_HEADS": 8}}, "says NUM_HEADS=8, the tensors say 2"),
        ({"NUM_HEADS": 2}, "unknown keys"),
        (
            {"ViT": {}},
            "do not tell backbone_config.num_attention_heads: pass `--set backbone_config",
        ),
    ],
)
def test_a_configuration_that_contradicts_the_tensors_is_refused(tmp_path, section, message):
    with pytest.raises(ValueError, match=message):
        convert(CHECKPOINT / "checkpoint.pth", tmp_path, {"ViT": {"NUM_HEADS": 2}} | section)
    assert not (tmp_path / "model").exists()


def test_every_tensor_at_full_size_has_its_place():
    entry = FULL_SIZE["VMAE-ViTB-16x4"]
    weights = {name: torch.empty(shape, device="meta") for name, shape in entry["keys"].items()}
    weights["stm_head.criterion.empty_weight"] = torch.tensor([1.0, 0.1])
    config = make_config(STMixerConfig, detector_fields({}, weights), [])
    with torch.device("meta"):
        model = STMixerForActionDetection(config)
    load_converted(model, apply_rules(weights, detector_rules(config)))
    assert sum(parameter.numel() for parameter in model.parameters()) == entry["parameters"] == 255_856_372
    assert config.num_labels == 80 and config.backbone_config.num_attention_heads == 12
