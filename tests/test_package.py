"""The package as a whole: what importing it does, and what it costs."""

import os
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest
import transformers

import hf_video
from hf_video.auto import CLASSES
from tests.testing.processes import Program, run_fresh

MODELS = [row for row in CLASSES if not row.auto_class.endswith("Processor")]


def test_every_class_answers_for_its_auto_class():
    for row in MODELS:
        config_class = getattr(hf_video, row.config_class)
        assert type(transformers.AutoConfig.for_model(config_class.model_type)) is config_class
        registered = getattr(transformers, row.auto_class)._model_mapping[config_class]
        assert registered is getattr(hf_video, row.class_name), row


def test_the_processor_of_a_family_is_found(tmp_path):
    hf_video.VideoViTConfig().save_pretrained(tmp_path)
    hf_video.VideoClipProcessor(num_frames=8).save_pretrained(tmp_path)
    processor = transformers.AutoVideoProcessor.from_pretrained(tmp_path)
    assert type(processor) is hf_video.VideoClipProcessor
    assert processor.num_frames == 8


def test_public_names_are_listed_and_unknown_ones_refused():
    assert {"VideoViTModel", "VideoClipProcessor", "__version__"} <= set(dir(hf_video))
    with pytest.raises(AttributeError, match="has no attribute 'VideoVit'"):
        hf_video.VideoVit  # noqa: B018


@pytest.mark.parametrize(
    "first_import",
    [
        "import hf_video, transformers",
        pytest.param("import transformers, hf_video", marks=pytest.mark.slow),
        pytest.param("from hf_video.models.videovit.modeling_videovit import VideoViTModel", marks=pytest.mark.slow),
    ],
)
def test_registration_survives_any_order_of_imports(first_import):
    program = f"{first_import}\nfrom transformers import AutoConfig\nAutoConfig.for_model('videovit')"
    result = run_fresh(Program(["-c", program], os.environ))[0]
    assert result.returncode == 0, result.stderr


def test_importing_the_package_loads_neither_torch_nor_transformers():
    program = "import sys, hf_video; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result.stderr


def test_the_wheel_holds_every_module_and_recipe(monkeypatch):
    setuptools = pytest.importorskip("setuptools", reason="setuptools is not installed")
    root = Path(hf_video.__file__).parents[1]
    monkeypatch.chdir(root)
    distribution = setuptools.Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    build = distribution.get_command_obj("build_py")
    build.build_lib, build.manifest_files = "build", {}
    build.finalize_options()
    packed = {Path(file) for _, _, file in build.find_all_modules()}
    for package in build.packages:
        packed |= {Path(file) for file in build.find_data_files(package, build.get_package_dir(package))}
    kinds = [
        ("hf_video", "*.py"),
        ("conversion", "*.py"),
        ("recipes", "*.yaml"),
        ("hf_video", "*.md"),
        ("hf_video", "*.mp4"),
    ]
    for folder, kind in (*kinds, ("hf_video", "*.json")):
        files = {file.relative_to(root) for file in (root / folder).rglob(kind)}
        assert files and files <= packed, f"not in the wheel: {sorted(map(str, files - packed))}"
    # setuptools warns of every folder of data that is no package.
    assert {file.parent for file in packed} <= {Path(build.get_package_dir(package)) for package in build.packages}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_installed_wheel_does_the_demo_without_the_repository(tmp_path):
    root, source = Path(hf_video.__file__).parents[1], tmp_path / "source"
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, source / name)
    build = "from setuptools import build_meta; build_meta.build_wheel('built'); build_meta.build_sdist('built')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True, timeout=300)
    (wheel,), (sdist,) = (source / "built").glob("*.whl"), (source / "built").glob("*.tar.gz")
    assert wheel.stat().st_size < 8e6 and sdist.stat().st_size < 8e6
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert "hf_video/py.typed" in names and not [name for name in names if name.startswith("tests")]
        archive.extractall(tmp_path / "site")
    # The folder comes before this environment's own hf_video.
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    run = partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    shown = run([sys.executable, "-c", "import hf_video; print(hf_video.__file__)"]).stdout
    assert shown.strip() == str(tmp_path / "site" / "hf_video" / "__init__.py")
    for words in (["example"], ["demo", "--fast"]):
        done = run([sys.executable, "-m", "hf_video.cli", *words])
        assert done.returncode == 0, done.stderr
