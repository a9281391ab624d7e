"""How often the kernel killed for memory in our cgroup: v2's memory.events, v1's memory.oom_control."""

from collections.abc import Iterator
from pathlib import Path

from anyio import to_thread


class CgroupOomCounter:
    """Implements `ports.OomCounter` on the daemon's own cgroup, in which the engine runs as well."""

    def __init__(self, mounts: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> None:
        self._mounts = mounts
        self._membership = membership

    async def read(self) -> int | None:
        """Return the count; None where there is none. Never raises."""
        return await to_thread.run_sync(self.count, abandon_on_cancel=True)

    def count(self) -> int | None:
        """Return the count; None where there is none. Blocking, briefly."""
        for file in self._files():
            try:
                text = file.read_text()
            except OSError:
                continue
            for line in text.splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill" and value.isdigit():
                    return int(value)
        return None

    def _files(self) -> Iterator[Path]:
        """Yield where the counter may be, the most specific first.

        In a container the path may be the host's and lead nowhere below the mount: then the mount is our cgroup.
        """
        try:
            lines = self._membership.read_text().splitlines()
        except OSError:
            return
        for line in lines:
            hierarchy, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if hierarchy == "0":
                for mount in (self._mounts, self._mounts / "unified"):
                    yield mount / path.lstrip("/") / "memory.events"
                    yield mount / "memory.events"
            elif "memory" in controllers.split(","):
                yield self._mounts / "memory" / path.lstrip("/") / "memory.oom_control"
                yield self._mounts / "memory" / "memory.oom_control"
