"""Device columns of request fields that are more than a number: lists, maps, token sets, texts.

They have a fixed width per slot, so that captured steps can read them. A slot's cells are sent only
when its value differs from that of the request before, and only as many as the value has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.interfaces.field_types import FieldType
from quire.interfaces.sampling import RequestField
from quire.worker.batch.device_tables import DeviceTables


class FieldColumns:
    """Columns of the fields that are not numbers; others are left out.

    Args:
        fields: Request fields.
        num_slots: Number of slots, the padding slot included.
        vocab_size: V.
        device: Device of the columns.

    Attributes:
        device: Name of the field with the column's suffix -> `[num_slots, ...]`, int32 or float32.
    """

    def __init__(
        self, fields: Sequence[RequestField], num_slots: int, vocab_size: int, device: torch.device
    ) -> None:
        self._types = [(f, f.type) for f in fields if isinstance(f.type, FieldType)]
        self._vocab_size = vocab_size
        self._written: list[dict[str, Any]] = [{} for _ in range(num_slots)]
        columns = [
            (field.name + column.suffix, column)
            for field, kind in self._types
            for column in kind.columns(vocab_size)
        ]
        widths = [int(np.prod(column.shape)) for _, column in columns]
        self._tables = DeviceTables(num_slots, widths, device)
        self.device: dict[str, Tensor] = {}
        for (name, column), table in zip(columns, self._tables.tables, strict=True):
            cells = table.view(torch.float32) if column.is_float else table
            self.device[name] = cells.view(num_slots, *column.shape)

    def write(self, slot: int, values: Mapping[str, Any]) -> None:
        """Queue the values of a request for its slot; `push` sends them."""
        table, written = 0, self._written[slot]
        for field, kind in self._types:
            columns = kind.columns(self._vocab_size)
            value = values.get(field.name, field.worker_default)
            if field.name not in written or written[field.name] != value:
                cells = kind.cells(value, self._vocab_size)
                for offset, (column, row) in enumerate(zip(columns, cells, strict=True)):
                    bits = np.array(row, np.float32 if column.is_float else np.int32)
                    self._tables.write(table + offset, slot, 0, bits.view(np.int32).tolist())
                written[field.name] = value
            table += len(columns)

    def push(self) -> None:
        """Send the queued values, after the work queued on the device."""
        self._tables.push()
