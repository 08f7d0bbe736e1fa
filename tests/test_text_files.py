"""Reading the text files of users, and refusing files that cannot be read."""

import pytest

from hf_video.io import (
    check_regular_file,
    named_rows,
    read_csv,
    read_json,
    read_json_lines,
    read_lines,
    read_text,
    read_yaml,
)

from .odd_files import ODD_FILES, make_odd_file


def read_rows(path):
    return list(read_csv(path))


READERS = [read_text, read_lines, read_json, read_json_lines, read_yaml, read_rows]


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("read", [*READERS, check_regular_file])
@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_file_is_refused_without_waiting(tmp_path, kind, read):
    path = make_odd_file(tmp_path / "file", kind)
    with pytest.raises((ValueError, OSError), match=f"^{path} {ODD_FILES[kind]}"):
        read(path)


@pytest.mark.parametrize("read", READERS)
def test_links_are_followed(tmp_path, read):
    (tmp_path / "link").symlink_to(write(tmp_path, "file", "{}"))
    read(tmp_path / "link")
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path / 'none'} does not exist"):
        read(tmp_path / "none")


@pytest.mark.parametrize("read", READERS)
def test_the_limit_of_the_size_names_itself(tmp_path, read, monkeypatch):
    path = write(tmp_path, "file", "[1, 2]")
    monkeypatch.setattr("hf_video.io.MAX_TEXT_BYTES", 6)
    read(path)
    monkeypatch.setattr("hf_video.io.MAX_TEXT_BYTES", 5)
    with pytest.raises(ValueError, match=f"^{path} has 6 bytes; at most 5 are read"):
        read(path)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("path\ncafé".encode("latin-1"), "byte 0xe9 in line 2"),
        ("path\n".encode("utf-16"), "byte 0x(ff|fe) in line 1"),
        ("path\n".encode("utf-16-le"), "byte 0x00 in line 1"),
        ("é\npa\0th".encode(), "byte 0x00 in line 2"),
    ],
)
def test_another_encoding_is_refused_by_byte_and_line(tmp_path, content, place):
    path = write(tmp_path, "file", content)
    with pytest.raises(ValueError, match=f"^{path} is not UTF-8: {place}. Save it with UTF-8 encoding"):
        read_text(path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = write(tmp_path, "file", '{"naïve": "1"}'.encode("utf-8-sig"))
    assert read_json(path) == read_yaml(path) == {"naïve": "1"}
    assert read_json_lines(path) == [(1, {"naïve": "1"})]
    assert list(read_csv(path))[0][1][0].startswith("{")


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_json, '{"a": 1, "a": 1}', " cannot be read as JSON: 'a' is given twice"),
        (read_json, '[{"a": {"b": 1}},\n {"c": 1, "\\u0063": 2}]', " cannot be read as JSON: 'c' is given twice"),
        (read_json_lines, '{"a": 1}\n\n{"a": 1,\t"a": 1}', ", line 3 cannot be read as JSON: 'a' is given twice"),
        (read_yaml, "a: 1\nb: 2\n# a\n'a': 3\n", r" .* as YAML: 'a' is given twice \(line 4, column 1\)"),
        (read_yaml, "b: {a: 1,\n c: [{d: 1, d: 2}]}", r" .* as YAML: 'd' is given twice \(line 2, column 13\)"),
    ],
)
def test_a_name_given_twice_is_refused(tmp_path, read, content, message):
    path = write(tmp_path, "file", content)
    with pytest.raises(ValueError, match=f"^{path}{message}"):
        read(path)


@pytest.mark.parametrize("read", [read_json, read_json_lines, read_yaml])
def test_what_is_too_deep_for_python_is_a_sentence(tmp_path, read):
    path = write(tmp_path, "deep", "[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match=f"^{path} is nested too deeply"):
        read(path)


def test_a_yaml_file_with_aliases_is_refused(tmp_path):
    for content in ("a: &a [x]\nb: *a", "a: &a [*a]", "a: *b"):
        with pytest.raises(ValueError, match=r"cannot be read as YAML: aliases are not read \(line "):
            read_yaml(write(tmp_path, "bomb.yaml", content))


def test_yaml_values_stay_as_they_are_written(tmp_path):
    assert read_yaml(write(tmp_path, "a.yaml", "a: 1e-3\nb: no\nc:\nd: [01, '2']\n")) == {
        "a": "1e-3",
        "b": "no",
        "c": "",
        "d": ["01", "2"],
    }
    assert read_yaml(write(tmp_path, "empty.yaml", "# nothing\n")) is None
    for content, message in (
        ("a: 1\nb: [", r" cannot be read as YAML: .* \(line 2, column 5\)\.$"),
        ("a: \x01", r" cannot be read as YAML: unacceptable character .*\.$"),
        ("? [a]\n: 1", r" cannot be read as YAML: found unhashable key \(line 1, column 3\)\.$"),
    ):
        path = write(tmp_path, "bad.yaml", content)
        with pytest.raises(ValueError, match=f"^{path}{message}"):
            read_yaml(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1,\n}', r"Expecting property name enclosed in double quotes \(line 2, column 1\)"),
        ("9" * 5000, "4300 digits"),
        ("", r"Expecting value \(line 1, column 1\)"),
    ],
)
def test_what_is_no_json_is_refused_by_its_place(tmp_path, content, message):
    path = write(tmp_path, "file", content)
    with pytest.raises(ValueError, match=f"^{path} cannot be read as JSON: .*{message}"):
        read_json(path)


def test_the_line_of_what_is_no_json_lines_is_that_of_the_file(tmp_path):
    with pytest.raises(ValueError, match="line 3, column 2"):
        read_json_lines(write(tmp_path, "file", "{}\r\n\r\n{"))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_cells_with_quotes_and_any_line_ends(tmp_path, end):
    lines = ["path,label", 'a.mp4, "run, fast"', "", 'b.mp4,"say ""x"""', f'"c{end}d",e']
    rows = list(read_csv(write(tmp_path, "a.csv", end.join(lines) + end)))
    assert rows == [
        (1, ["path", "label"]),
        (2, ["a.mp4", "run, fast"]),
        (4, ["b.mp4", 'say "x"']),
        (6, [f"c{end}d", "e"]),
    ]


def test_a_quote_that_is_never_closed_does_not_swallow_the_rest(tmp_path):
    path = write(tmp_path, "a.csv", 'path,label\na.mp4,"run\nb.mp4,sit\nc.mp4,run\n')
    with pytest.raises(ValueError, match=f"^{path} cannot be read as CSV: .* in the row from line 2 on"):
        list(read_csv(path))


def test_lines_end_at_line_ends_alone(tmp_path):
    assert read_lines(write(tmp_path, "a.txt", "a\u2028b\r\nc\x0cd\re\n")) == ["a\u2028b", "c\x0cd", "e", ""]


def test_rows_by_the_names_of_their_columns(tmp_path):
    rows = [(2, ["a"]), (3, ["b", "c"])]
    assert list(named_rows("x.csv", ["path", "label"], rows)) == [
        (2, {"path": "a", "label": ""}),
        (3, {"path": "b", "label": "c"}),
    ]
    with pytest.raises(ValueError, match="x.csv has the column 'label' twice"):
        list(named_rows("x.csv", ["label", "path", "label"], rows))
    with pytest.raises(ValueError, match="x.csv, line 3 has more cells than the first line"):
        list(named_rows("x.csv", ["path"], rows))
