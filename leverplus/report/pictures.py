"""Makes small pictures for a page: every distinct picture is embedded once, as a class of the style sheet."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field

from leverplus.errors import LeverError
from leverplus.tasks.base import Task
from leverplus.types import Item, ItemId

SIDE = 96  # pixels of the longer side
QUALITY = 80  # of WebP, from 0 to 100


@dataclass
class Thumbnails:
    """Items and their thumbnails; `task` is None where the task's data cannot be reached."""

    task: Task | None
    _classes: dict[str, str] = field(default_factory=dict)  # picture's path -> class
    _images: dict[bytes, str] = field(default_factory=dict)  # content of a thumbnail -> class

    def item(self, item_id: str) -> Item | None:
        """The item, None where the task is out of reach or does not know it."""
        if self.task is None:
            return None
        try:
            return self.task.item(ItemId(item_id))
        except LeverError:
            return None

    def css_class(self, item: Item | None) -> str:
        """The class that shows an item's picture; "" where it has none or it cannot be read."""
        if self.task is None or item is None or item.image is None:
            return ""
        if item.image not in self._classes:
            try:
                content = self._thumbnail(self.task, item)
            except (LeverError, OSError):
                content = None
            name = ""
            if content is not None:  # equal pictures under two paths get one class
                name = self._images.setdefault(content, f"p{len(self._images)}")
            self._classes[item.image] = name
        return self._classes[item.image]

    @staticmethod
    def _thumbnail(task: Task, item: Item) -> bytes | None:
        image = task.image(item)
        if image is None:
            return None
        small = image.convert("RGB")
        small.thumbnail((SIDE, SIDE))
        out = io.BytesIO()
        small.save(out, "WEBP", quality=QUALITY)
        return out.getvalue()

    def style_sheet(self) -> str:
        """One rule per picture."""
        rules = []
        for content, name in self._images.items():
            data = base64.b64encode(content).decode()
            rules.append(f".{name}{{background-image:url(data:image/webp;base64,{data})}}")
        return "\n".join(rules)
