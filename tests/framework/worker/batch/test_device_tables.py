import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_device import DEVICE

from quire.worker.batch.device_tables import DeviceTables

WIDTHS = (7, 3)
NUM_ROWS = 4


def contents(tables):
    return [table.tolist() for table in tables.tables]


def test_cells_are_written_together_by_one_push():
    tables = DeviceTables(NUM_ROWS, WIDTHS, DEVICE)
    tables.write(0, 1, 2, [5, 6])
    tables.write(1, 3, 0, [7, 8, 9])
    assert not tables.cells.any(), "not before"
    tables.push()
    first, second = contents(tables)
    assert first == [[0] * 7, [0, 0, 5, 6, 0, 0, 0], [0] * 7, [0] * 7]
    assert second == [[0] * 3, [0] * 3, [0] * 3, [7, 8, 9]]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(0, NUM_ROWS - 1),
            st.integers(0, 2),
            st.lists(st.integers(1, 99), max_size=3),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_the_last_write_to_a_cell_counts(writes):
    tables = DeviceTables(NUM_ROWS, WIDTHS, DEVICE)
    expected = [[[0] * width for _ in range(NUM_ROWS)] for width in WIDTHS]
    for table, row, column, values, is_pushed in writes:
        values = values[: WIDTHS[table] - column]
        tables.write(table, row, column, values)
        expected[table][row][column : column + len(values)] = values
        if is_pushed:
            tables.push()
    tables.push()
    assert contents(tables) == expected


def test_a_row_does_not_run_over_into_the_next():
    tables = DeviceTables(NUM_ROWS, WIDTHS, DEVICE)
    with pytest.raises(IndexError, match="3 cells from column 1 on, but a row has 3"):
        tables.write(1, 0, 1, [1, 2, 3])


def test_tables_have_fixed_addresses():
    tables = DeviceTables(NUM_ROWS, WIDTHS, DEVICE)
    addresses = [table.data_ptr() for table in tables.tables]
    base = tables.cells.data_ptr()
    assert [(address - base) // 4 for address in addresses] == tables.starts == [0, 28]
    tables.write(0, 0, 0, [1])
    tables.push()
    assert [table.data_ptr() for table in tables.tables] == addresses
    assert tables.cells.dtype == torch.int32


def test_what_was_sent_is_not_sent_again():
    tables = DeviceTables(2, [3], torch.device("cpu"))
    tables.write(0, 1, 0, [5])
    tables.push()
    tables.put(0, np.array([1]), np.array([0]), torch.tensor([9], dtype=torch.int32))
    tables.push()
    assert tables.tables[0].tolist() == [[0, 0, 0], [9, 0, 0]]
