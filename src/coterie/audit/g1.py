"""G1 self-inclusion: a member installs only views that contain it."""

from __future__ import annotations

from coterie.audit import views
from coterie.audit.fold import BY_NODE, Found, Property, Violation
from coterie.audit.lives import address
from coterie.trace import Event


class SelfInclusion(Property[Found]):
    name = "G1"
    title = "self-inclusion"
    sentence = "A member installs only views that contain it."
    split_by = BY_NODE
    kinds = ("view",)

    def start(self) -> Found:
        return Found(self.name)

    def step(self, state: Found, event: Event) -> None:
        who, listed = address(event), views.members(event)
        if listed and who not in listed:
            state.add(f"{who} installed {event.view or 'a view'} of {', '.join(listed)}, without itself", event)

    def certain(self, state: Found) -> list[Violation]:
        return state.certain()

    def finish(self, state: Found) -> list[Violation]:
        return state.close()
