"""Finds the models that users name, loads them ready for use, and chooses their device.

Libraries are imported in the functions, so that commands can name them before their help needs PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.io import SECONDS_FOR_AN_ANSWER, naming
from hf_video.settings import closest, few

from .released import SHIPPED, START_FOLDER, find_released, locate_released, released_models

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from transformers import PreTrainedModel

    from hf_video.processing import VideoClipProcessor

    from .heads import TrainedPart

# The types of models that compare videos with texts.
VIDEO_TEXT_TYPES = ("video_text_dual_encoder", "xclip", "videoprism")


def locate_model(name: str, option: str = "") -> str:
    """The folder or Hub name of a model: a folder comes before a released model of this name, which is fetched and
    converted if that was not done before, and that before the Hub. "start" is the bundled model. It is a
    `ValueError` if there is no such folder or name, which `option` gave; or a released model cannot be had."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    released, folder = find_released(name), Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if folder.is_file():
        raise ValueError(f"{name} is a file; the folder of a model, or its name on the Hub, is expected.")
    if released is not None:
        return locate_released(released)
    if name == SHIPPED:
        return str(START_FOLDER)
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        named = f"{option} {name}".strip()
        said = f"{named}: there is no such folder, and the Hub allows no such name. {_near(name)}".rstrip()
        raise ValueError(said) from error
    return name


def _near(name: str) -> str:
    """Asks for the folder of a model in the same place, or the released model, whose name is the closest."""
    path = Path(name).expanduser()
    folders = [each.parent.name for each in path.parent.glob("*/config.json")]
    return closest(path.name, folders) or closest(name, released_models())


def require_model(name: str, option: str = "") -> str:
    """[`locate_model`], which then asks the Hub once for a model that is neither a folder nor in the cache: a download
    would be tried for half a minute. It is an `OSError` if the Hub has no such model, or does not answer."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    name = locate_model(name, option)
    named, folder = f"{option} {name}".strip(), Path(name)
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("config.json", "adapter_config.json")):
            inside = few(path.parent.name for path in sorted(folder.glob("*/config.json")))
            hint = f" Inside it is {inside}." if inside else ""
            raise ValueError(f"{named} has no config.json, so it is no folder of a model.{hint}")
        return name
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return name
    near = _near(name)
    try:
        with naming(f"{name} ({near})" if near else name):
            HfApi().model_info(name, timeout=SECONDS_FOR_AN_ANSWER)
    except (RepositoryNotFoundError, OfflineModeIsEnabled):
        raise
    except HfHubHTTPError:
        pass  # such as of a busy server
    except Exception as error:
        raise ConnectionError(
            f"{named}: there is no folder of this name here, and the Hub does not answer ({error}). Check the name, "
            f"the connection, HF_ENDPOINT and the proxies. {near}".rstrip()
        ) from error
    return name


def answers_in_words(model: str) -> bool:
    """Whether a model, by its folder or name, is a MemoryBankQFormer that answers questions."""
    from .configurations import load_config

    architectures = load_config(require_model(model)).architectures
    return "MemoryBankQFormerForConditionalGeneration" in (architectures or ())


def choose_device(name: str) -> torch.device:
    """The device of a name, or the accelerator of this machine for "auto". It is a `ValueError` if there is none."""
    import torch

    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the type depends on how torch was built
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"--device {name} cannot be used on this machine ({reason}). Try --device cpu.") from error
    return device


def load_trained_model(
    model: str,
    *,
    device: str = "auto",
    dtype: str = "float32",
    part: TrainedPart = "classifier",
    **processor_options: Any,
) -> tuple[PreTrainedModel, VideoClipProcessor]:
    """A video classifier in evaluation mode and its processor.

    Args:
        model: a folder written by `save_pretrained`, or a Hub repository.
        device: see `choose_device`.
        dtype: "float32", "bfloat16" or "float16".
        part: what must have been trained, and is returned; see `load_trained_classifier`.
        processor_options: values that replace options of the saved processor; None keeps the saved value.

    Raises:
        OSError: there is no such model.
        ValueError: the model is not a video classifier, is damaged or does not take several views, or the device does
            not exist.
    """
    model, target = require_model(model), choose_device(device)

    from .clip_size import check_clips
    from .heads import load_trained_classifier
    from .processors import load_processor

    network = load_trained_classifier(model, dtype=dtype, part=part)
    processor = load_processor(model, network.config, **processor_options)
    check_clips(network, processor)
    return network.to(target).eval(), processor


def load_answering_model(model: str, *, device: str = "auto", dtype: str = "float32") -> tuple[Any, Any]:
    """A MemoryBankQFormer that answers in words, in evaluation mode, and its processor of videos and texts. Arguments
    and errors are those of [`load_trained_model`]."""
    expected = "which has no memory; a MemoryBankQFormer is expected"
    return _load(model, "AutoModelForImageTextToText", device, dtype, ["memory_bank_qformer"], expected)


def load_action_detector(model: str, *, device: str = "auto", dtype: str = "float32") -> tuple[Any, Any]:
    """An action detector such as STMixer in evaluation mode, and its processor. Arguments and errors are those of
    [`load_trained_model`]."""
    expected = "which detects no actions: `hf-video train --task action-detection` makes an stmixer around a backbone"
    return _load(model, "AutoModelForObjectDetection", device, dtype, ["stmixer"], expected)


def load_video_text_model(model: str, *, device: str = "auto", dtype: str = "float32") -> tuple[Any, Any]:
    """A model with `get_video_features` and `get_text_features` in evaluation mode, and its processor of videos and
    texts: a VideoTextDualEncoder, or a model of Transformers such as X-CLIP, which is given a
    [`VideoTextDualEncoderProcessor`] with its own options and tokenizer. Arguments and errors are those of
    [`load_trained_model`]."""
    expected = f"which does not compare videos with texts: {' or '.join(VIDEO_TEXT_TYPES)} is expected"
    return _load(model, "AutoModel", device, dtype, VIDEO_TEXT_TYPES, expected)


def _load(
    model: str, auto_class: str, device: str, dtype: str, types: Sequence[str], expected: str
) -> tuple[Any, Any]:
    """A model of an Auto class with all of its weights, in evaluation mode, and its processor. It has one of these
    types; `expected` is what is said of another one."""
    model, target = require_model(model), choose_device(device)

    import transformers

    from .configurations import check_quantization, load_config, load_weights, loading, refuse_missing

    config = load_config(model)
    check_quantization(model, config, dtype)
    if config.model_type not in types:
        raise ValueError(f"{model} is a {config.model_type}, {expected}.")
    network, report = load_weights(getattr(transformers, auto_class), model, dtype=dtype)
    refuse_missing(model, network, report["missing_keys"])
    with loading(model):
        return network.to(target).eval(), _processor_of(model, config, auto_class)


def _processor_of(model: str, config: Any, auto_class: str) -> Any:
    """The processor of a model of an Auto class. Models of Transformers that compare videos with texts have none."""
    import transformers

    from .processors import load_processor

    if auto_class in ("AutoModelForVideoClassification", "AutoModelForPreTraining"):
        return load_processor(model, config)
    if auto_class != "AutoModel" or config.model_type not in VIDEO_TEXT_TYPES[1:]:
        own = {"AutoModelForImageClassification": "AutoImageProcessor"}
        own |= {"AutoModelForObjectDetection": "AutoVideoProcessor"}
        return getattr(transformers, own.get(auto_class, "AutoProcessor")).from_pretrained(model)
    from hf_video.models.video_text.processing_video_text import VideoTextDualEncoderProcessor

    return VideoTextDualEncoderProcessor(
        load_processor(model, config.vision_config),
        transformers.AutoTokenizer.from_pretrained(model),
        max_length=config.text_config.max_position_embeddings,
        clean_text=False,
    )


def load_released(name: str, **options: Any) -> tuple[PreTrainedModel, Any]:
    """A model that its authors released, in evaluation mode, and its processor. `hf-video models` lists the names.

    The first time, the authors' file is fetched from the Hub and converted, see `locate_model`.

    Args:
        name: the name of a released model, or "start".
        options: those of `from_pretrained`, such as `dtype`.

    Raises:
        ValueError: there is no released model of this name, or it cannot be had.
    """
    classes = {row.name: row.auto_class for row in released_models().values()}
    classes |= {SHIPPED: "AutoModelForVideoClassification"}
    if name not in classes:
        hint = closest(name, classes) or "`hf-video models` lists them."
        raise ValueError(f"There is no released model {name!r}. {hint}")
    folder, auto_class = locate_model(name), classes[name]

    import transformers

    from .configurations import loading

    with loading(folder):
        network = getattr(transformers, auto_class).from_pretrained(folder, **options)
    return network.eval(), _processor_of(folder, network.config, auto_class)
