"""
Runs PTX, the assembly that Triton compiles kernels to, without a GPU.

Programs run one after another and their warps in turns, a lane being one element of NumPy arrays. What hardware lets
pass is an error: access outside an array, reading shared memory that nobody has written, and races, that is access to
what another warp has written since the last barrier, or another program ever, or to what others read and this one
writes. It knows the instructions that this package's kernels are made of (PTX ISA, https://docs.nvidia.com/cuda/
parallel-thread-execution) and no others, with exact instead of approximate functions.
"""

import re
from typing import NamedTuple

import numpy as np
import torch

LANES = 32
GAP = 256
NOBODY, SEVERAL = -1, -2

MODIFIERS = frozenset(
    "aligned approx bfly down ftz full global lo m8n8 param rn shared sync uni up v2 v4 warp wide x1 x2 x4".split()
)
KINDS = {"b": "u", "u": "u", "s": "i", "f": "f"}
COMPARISONS = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
               "ne": np.not_equal}  # fmt: skip
FUNCTIONS = {"mov": lambda x: x, "neg": np.negative, "abs": np.abs, "not": np.invert, "ex2": np.exp2, "add": np.add,
             "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
             "max": np.fmax, "min": np.fmin}  # fmt: skip


class Unknown(NotImplementedError):
    """An instruction that is not known here."""


def known(table: dict, name: str):
    if name not in table:
        raise Unknown(name)
    return table[name]


class Statement(NamedTuple):
    guard: str | None
    negated: bool
    opcode: list[str]
    operands: list[str]
    text: str


def dtype_of(name: str) -> np.dtype:
    """`u32` and the like; bfloat16 is taken for the bits that it is."""
    if name == "pred":
        return np.dtype(bool)
    if not re.fullmatch(r"[busf](8|16|32|64)|bf16", name):
        raise Unknown(f"type {name}")
    return np.dtype("u2" if name == "bf16" else KINDS[name[0]] + str(int(name[1:]) // 8))


def parse(ptx: str) -> tuple[list[Statement], dict[str, int], list[str], int]:
    """Statements, the one that each label stands before, names of the parameters, and number of threads."""
    header, body = re.search(r"\.entry \w+\((.*?)\)(.*?\n)\}", re.sub(r"//.*", "", ptx), re.DOTALL).groups()
    threads = int(re.search(r"\.reqntid (\d+)", body)[1])
    body = "\n".join(line for line in body.splitlines() if not re.match(r"\s*(\.|\{$|\}$)", line))
    statements, labels = [], {}
    for label, text in re.findall(r"(\$\w+):|(@?!?[%\w][^;]*);", body):
        if label:
            labels[label] = len(statements)
            continue
        text = " ".join(text.split())
        negated, guard, opcode, operands = re.fullmatch(r"(?:@(!?)(%\w+) )?([\w.:]+) ?(.*)", text).groups()
        operands = re.findall(r"\{.*?\}|\[.*?\]|[^\s,]+", operands)
        opcode = opcode.replace("::cta", "").split(".")
        for part in {*opcode[1:]} - MODIFIERS - {*COMPARISONS}:
            dtype_of(part)
            if part == "bf16" and opcode[0] != "cvt":
                raise Unknown(text)
        statements.append(Statement(guard, bool(negated), opcode, operands, text))
    return statements, labels, re.findall(r"(\w+_param_\d+)", header), threads


class Memory:
    """Bytes, with what each belongs to, and who has last written and read it: program, barriers passed, and warp."""

    def __init__(self, size: int):
        self.bytes = np.full(size, 0xFF, np.uint8)
        self.owner = np.full(size, NOBODY)
        self.is_written = np.zeros(size, bool)
        self.writer, self.reader = (np.full((size, 3), NOBODY) for _ in range(2))

    def places(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """Indices of the bytes of each lane, `(lanes, size)`."""
        places = addresses[:, None] + np.arange(size)
        if places.min() < 0 or places.max() >= len(self.owner):
            raise IndexError("far outside of all arrays")
        owner = self.owner[places]
        if (owner == NOBODY).any() or (owner != owner[:, :1]).any() or (addresses % size).any():
            raise IndexError("outside of an array, or not aligned")
        return places

    @staticmethod
    def collide(others: np.ndarray, me: tuple[int, int, int]) -> np.ndarray:
        program, barriers, warp = others[..., 0], others[..., 1], others[..., 2]
        concurrent = (barriers == me[1]) & (warp != me[2])
        return (program != NOBODY) & ((program != me[0]) | concurrent)

    def load(self, addresses: np.ndarray, size: int, me: tuple[int, int, int]) -> np.ndarray:
        places = self.places(addresses, size)
        if not self.is_written[places].all():
            raise ValueError("nobody has written what is read")
        if self.collide(self.writer[places], me).any():
            raise RuntimeError("a race: read what another has written")
        shared = self.collide(self.reader[places], me)
        self.reader[places] = me
        self.reader[places[shared], 2] = SEVERAL
        return self.bytes[places]

    def store(self, addresses: np.ndarray, values: np.ndarray, me: tuple[int, int, int]) -> None:
        places = self.places(addresses, values.shape[1])
        # Threads that own the same element may all write it.
        changed = self.bytes[places] != values
        if (self.collide(self.writer[places], me) & changed).any() or self.collide(self.reader[places], me).any():
            raise RuntimeError("a race: wrote what another has written or read")
        self.bytes[places], self.writer[places], self.is_written[places] = values, me, True
        if (self.bytes[places] != values).any():
            raise RuntimeError("a race: lanes write different values to one place")


class Warp:
    def __init__(self, run: "Run", number: int):
        self.run, self.number = run, number
        self.registers: dict[str, np.ndarray] = {}
        self.next = np.zeros(LANES, int)
        self.special = {"%tid.x": number * LANES + np.arange(LANES), "global_smem": np.zeros(LANES, int)}
        for axis, name in enumerate("xyz"):
            self.special["%ctaid." + name] = np.full(LANES, run.program[axis])
            self.special["%nctaid." + name] = np.full(LANES, run.grid[axis])

    def until_barrier(self) -> bool:
        """Whether it goes on behind one. Of lanes that have parted, those further behind come first."""
        statements, labels = self.run.statements, self.run.labels
        while (self.next < len(statements)).any():
            at = self.next.min()
            statement, active = statements[at], self.next == at
            lanes = active
            if statement.guard:
                lanes = active & (self.registers[statement.guard] ^ statement.negated)
            self.next[active] += 1
            match statement.opcode:
                case ["ret"]:
                    self.next[lanes] = len(statements)
                case ["bra", *_]:
                    self.next[lanes] = labels[statement.operands[0]]
                case ["bar", "sync"]:
                    if not active.all():
                        raise RuntimeError("lanes have parted before a barrier")
                    return True
                case ["bar", "warp", "sync"]:
                    pass
                case _ if lanes.any():
                    try:
                        with np.errstate(all="ignore"):
                            self.execute(statement.opcode, statement.operands, lanes)
                    except Exception as error:
                        error.add_note(f"at `{statement.text}`")
                        raise
        return False

    def read(self, operand: str, kind: str) -> np.ndarray:
        dtype = dtype_of(kind)
        if operand in self.special:
            return self.special[operand].astype(dtype)
        if operand.startswith("{"):
            parts = [self.read(part, f"b{dtype.itemsize * 4}") for part in re.findall(r"[%\w]+", operand)]
            return np.stack(parts, axis=1).view(dtype).ravel()
        if operand.startswith("%"):
            # What a path does not need it may leave unwritten, and yet exchange.
            bits = self.registers.get(operand, np.full(LANES, -1))
            return bits if bits.dtype == dtype else bits.astype(f"u{dtype.itemsize}").view(dtype)
        if operand.startswith("0f"):
            return np.full(LANES, int(operand[2:], 16), np.uint32).view(dtype)
        return np.full(LANES, int(operand, 0), "i8").astype(dtype)

    def write(self, operand: str, values: np.ndarray, lanes: np.ndarray) -> None:
        """To one register, or to several as many bytes each."""
        names = re.findall(r"%\w+", operand)
        if values.dtype != bool:
            values = np.ascontiguousarray(values).view(np.uint8).reshape(LANES, len(names), -1)
            values = values.view(f"u{values.shape[2]}")[..., 0]
        for name, bits in zip(names, values.reshape(LANES, -1).T, strict=True):
            old = self.registers.get(name, bits)
            self.registers[name] = np.where(lanes, bits, old)

    def addresses(self, operand: str) -> np.ndarray:
        name, offset = re.fullmatch(r"\[ ?([%\w]+) ?\+? ?(-?\d*) ?\]", operand).groups()
        base = self.special.get(name)
        base = self.registers[name].astype(np.int64) if base is None else base
        return base + int(offset or 0)

    def memory(self, space: str) -> Memory:
        return self.run.shared if space == "shared" else self.run.memory

    def me(self) -> tuple[int, int, int]:
        return self.run.number, self.run.barriers, self.number

    def load(self, opcode: list[str], target: str, address: str, lanes: np.ndarray) -> None:
        dtype = dtype_of(opcode[-1])
        if opcode[1] == "param":
            return self.write(target, np.full(LANES, self.run.arguments[address[1:-1]]).astype(dtype), lanes)
        values = np.zeros((LANES, dtype.itemsize * target.count("%")), np.uint8)
        places = self.addresses(address)[lanes]
        values[lanes] = self.memory(opcode[1]).load(places, values.shape[1], self.me())
        self.write(target, values, lanes)

    def store(self, opcode: list[str], address: str, source: str, lanes: np.ndarray) -> None:
        dtype = dtype_of(opcode[-1])
        parts = [self.read(name, opcode[-1]) for name in re.findall(r"[%\w]+", source)]
        values = np.stack(parts, axis=1).astype(dtype).view(np.uint8)
        self.memory(opcode[1]).store(self.addresses(address)[lanes], values[lanes], self.me())

    def move_matrices(self, is_store: bool, registers: str, address: str) -> None:
        """8 x 8 elements of 16 bits each: 8 lanes name the rows of one, and a lane has 4 bytes of a row."""
        rows = self.addresses(address)
        for i, name in enumerate(re.findall(r"%\w+", registers)):
            places = (rows[8 * i : 8 * i + 8, None] + np.arange(0, 16, 4)).ravel()
            if is_store:
                self.run.shared.store(places, self.read(name, "b32")[:, None].view(np.uint8), self.me())
            else:
                values = self.run.shared.load(places, 4, self.me())
                self.write(name, values, np.ones(LANES, bool))

    def shuffle(self, opcode: list[str], operands: list[str], lanes: np.ndarray) -> np.ndarray:
        values, by, clamp, _ = (self.read(operand, "u32").astype(int) for operand in operands)
        lane, segment = np.arange(LANES), clamp >> 8 & 31
        bound = lane & segment | clamp & 31 & ~segment
        source = known({"bfly": lane ^ by, "up": lane - by, "down": lane + by}, opcode[2])
        source = np.where(source >= bound if opcode[2] == "up" else source <= bound, source, lane)
        if not lanes[source[lanes]].all():
            raise RuntimeError("a lane is asked that is not there")
        return values[source].astype(np.uint32)

    def convert(self, opcode: list[str], source: str) -> np.ndarray:
        *_, to, of = opcode
        values = self.read(source, of)
        if of == "bf16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        if to == "bf16":
            bits = values.view(np.uint32)
            nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            return np.where(np.isnan(values), 0x7FC0, nearest).astype(np.uint16)
        return values.astype(dtype_of(to))

    def execute(self, opcode: list[str], operands: list[str], lanes: np.ndarray) -> None:
        name, kind = opcode[0], opcode[-1]
        target = operands[0]

        def sources(*kinds: str) -> list[np.ndarray]:
            return [self.read(x, each) for x, each in zip(operands[1:], kinds or [kind] * 9, strict=False)]

        match name:
            case "ld":
                return self.load(opcode, *operands, lanes)
            case "st":
                return self.store(opcode, *operands, lanes)
            case "stmatrix":
                return self.move_matrices(True, operands[1], operands[0])
            case "ldmatrix":
                return self.move_matrices(False, *operands)
            case "shfl":
                result = self.shuffle(opcode, operands[1:], lanes)
            case "cvt":
                result = self.convert(opcode, operands[1])
            case "setp":
                result = known(COMPARISONS, opcode[1])(*sources())
            case "selp":
                first, second, condition = sources(kind, kind, "pred")
                result = np.where(condition, first, second)
            case "fma":
                first, second, third = (x.astype(np.float64) for x in sources())
                result = (first * second + third).astype(np.float32)
            case "mul" | "mad" if opcode[1] == "wide":
                wide = f"{kind[0]}{2 * int(kind[1:])}"
                factors = (x.astype(dtype_of(wide)) for x in sources(kind, kind))
                result = np.multiply(*factors) + (self.read(operands[3], wide) if name == "mad" else 0)
            case "mad":
                first, second, third = sources()
                result = first * second + third
            case "div" if kind == "f32":
                result = np.divide(*sources())
            case "div" | "rem":
                first, second = (x.astype(np.int64) for x in sources())
                quotient = np.trunc(first / second).astype(np.int64)
                result = (quotient if name == "div" else first - quotient * second).astype(dtype_of(kind))
            case "shl" | "shr":
                first, second = sources(kind, "u32")
                result = (np.left_shift if name == "shl" else np.right_shift)(first, second.astype(first.dtype))
            case "bfe":
                first, start, size = (x.astype(np.int64) for x in sources("u32", "u32", "u32"))
                field = first >> start & (1 << size) - 1
                signed = kind == "s32" and (field >> size - 1 & 1 == 1)
                result = np.where(signed, field - (1 << size), field).astype(np.int32)
            case _:
                result = known(FUNCTIONS, name)(*sources())
        self.write(target, result, lanes)


class Run:
    """One program of a launch."""

    def __init__(self, kernel, arguments, memory, shared_size, grid, program, number):
        self.statements, self.labels, names, self.threads = kernel
        # Triton adds pointers to memory of its own, of which it has none here.
        self.arguments = dict.fromkeys(names, 0) | dict(zip(names, arguments, strict=False))
        self.memory, self.shared = memory, Memory(shared_size)
        self.shared.owner[:] = 0
        self.grid, self.program, self.number, self.barriers = grid, program, number, 0

    def finish(self, order: np.random.Generator) -> None:
        warps = [Warp(self, number) for number in range(self.threads // LANES)]
        while warps:
            order.shuffle(warps)
            waiting = [warp.until_barrier() for warp in warps]
            if any(waiting) and not all(waiting):
                raise RuntimeError("some warps have ended before a barrier of the others")
            warps = warps if all(waiting) else []
            self.barriers += 1


def launch(ptx: str, shared_size: int, grid: tuple[int, ...], arguments: list[torch.Tensor | int]) -> None:
    """Run all programs of a grid on tensors on the CPU, which may share memory, and numbers."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in arguments if torch.is_tensor(x)}
    contents = {key: torch.empty(0, dtype=torch.uint8).set_(storage).numpy() for key, storage in storages.items()}
    starts, end = {}, GAP
    for key, content in contents.items():
        starts[key] = end
        end += -(-len(content) // GAP) * GAP + GAP
    memory = Memory(end)
    for number, (key, content) in enumerate(contents.items()):
        place = slice(starts[key], starts[key] + len(content))
        memory.bytes[place], memory.owner[place], memory.is_written[place] = content, number, True
    values = [
        starts[x.untyped_storage().data_ptr()] + x.storage_offset() * x.element_size() if torch.is_tensor(x) else x
        for x in arguments
    ]
    kernel, order, grid = parse(ptx), np.random.default_rng(0), (*grid, 1, 1)[:3]
    for number, (z, y, x) in enumerate(np.ndindex(grid[::-1])):
        Run(kernel, values, memory, shared_size, grid, (x, y, z), number).finish(order)
    for key, content in contents.items():
        content[:] = memory.bytes[starts[key] : starts[key] + len(content)]
