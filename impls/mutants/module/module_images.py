"""Modules of images: height and width, pixels and features."""

from __future__ import annotations

from torch import Tensor

from .modular import Axial, PoolOfImage, Shifted, wrong


@wrong("heads of lines and of columns are split by view, without a transpose", "module_permuted_lines_permute_rows", bug="D01")
class LinesSplitByView(Axial):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.num_heads, x.shape[2], -1)


@wrong("columns are put back by a reshape, without a transpose", "module_permuted_lines_permute_rows")
class ColumnsReshaped(Axial):
    def back(self, columns: Tensor) -> Tensor:
        b, width, height, features = columns.shape
        return columns.reshape(b, height, width, features)


@wrong("an image is made tokens by a reshape, without a transpose", "module_without_its_positions_order_does_not_matter", "openai/CLIP")
class PixelsReshaped(PoolOfImage):
    def pixels(self, x: Tensor) -> Tensor:
        b, features, height, width = x.shape
        return x.reshape(b, height * width, features)


@wrong("windows are shifted once more, where they ought to be shifted back", "module_every_token_is_seen", "microsoft/Swin-Transformer")
class ShiftedTwice(Shifted):
    def back(self, image: Tensor) -> Tensor:
        return self.there(image)
