"""What closes a container (`air/sandbox/docker/container_spec.py`), and what removes it."""

from __future__ import annotations

from tests.mutants import DOCKER_WORKS, Mutant, in_docker

_FILE = "air/sandbox/docker/container_spec.py"
_BOX = "air/sandbox/wire/guest_box.py"
_CLOSED = "tests/docker/test_box_closed.py"


def _mutant(name: str, old: str, new: str, *tests: str, still: str = DOCKER_WORKS) -> Mutant:
    return Mutant(name, _FILE, old, new, tests, still)


MUTANTS = (
    _mutant(
        "a container has no network",
        'network_mode="none"',
        'network_mode="bridge"',
        *in_docker("there-is-no-network"),
    ),
    _mutant(
        "all capabilities are dropped",
        'cap_drop=["ALL"]',
        "cap_drop=[]",
        *in_docker("nobody-in-it-has-privileges"),
    ),
    _mutant(
        "a grader's box has three capabilities and no more",
        '["SETUID", "SETGID", "KILL"]',
        '["SETUID", "SETGID", "KILL", "DAC_OVERRIDE"]',
        *in_docker("a-second-user-is-kept-apart"),
    ),
    _mutant(
        "no process gains privileges",
        'security_opt=["no-new-privileges"]',
        "security_opt=[]",
        *in_docker("nobody-in-it-has-privileges"),
    ),
    _mutant(
        "the root is read-only",
        "read_only=True",
        "read_only=False",
        *in_docker("only-the-named-folders-can-be-written"),
    ),
    _mutant(
        "shared memory ends with its processes",
        'sysctls={"kernel.shm_rmid_forced": "1"}',
        "sysctls={}",
        *in_docker("shared-memory-does-not-outlive-its-process"),
    ),
    _mutant(
        "processes are limited",
        "pids_limit=limits.pids + 1",
        "pids_limit=-1",
        *in_docker("there-are-no-more-processes-than-allowed"),
    ),
    _mutant(
        "memory is limited",
        "TMP_MB + limits.shm_mb) * MIB",
        "TMP_MB + limits.shm_mb) * 8 * MIB",
        *in_docker("memory-is-bounded"),
    ),
    _mutant(
        "every folder that is memory counts on top of a box's own",
        "limits.disk_mb * (1 + extra)",
        "limits.disk_mb",
        *in_docker("stats-tell-the-limit-of-memory"),
    ),
    _mutant(
        "swap is not added to memory",
        "memswap_limit=memory",
        "memswap_limit=-1",
        *in_docker("the-kernel-keeps-the-limits"),
    ),
    _mutant(
        "cores are limited",
        "nano_cpus=int(limits.cpus * 1e9)",
        "nano_cpus=0",
        *in_docker("the-kernel-keeps-the-limits"),
    ),
    _mutant(
        "/dev/shm is limited",
        "shm_size=limits.shm_mb * MIB",
        "shm_size=limits.shm_mb * 4 * MIB",
        *in_docker("full-disks-are-bounded-and-said"),
    ),
    _mutant(
        "writable folders are limited",
        "size={size}m,nr_inodes",
        "size={size * 8}m,nr_inodes",
        *in_docker("full-disks-are-bounded-and-said"),
    ),
    _mutant(
        "the number of files is limited",
        'limits = f"size={size}m,nr_inodes={inodes(size)}"',
        'limits = f"size={size}m"',
        *in_docker("empty-files-are-bounded"),
    ),
    _mutant(
        "writable folders take no setuid programs",
        "rw,exec,nosuid,nodev",
        "rw,exec,suid,nodev",
        *in_docker("writable-folders-take-no-setuid-program-and-no-device"),
    ),
    _mutant(
        "writable folders take no devices",
        "rw,exec,nosuid,nodev",
        "rw,exec,nosuid,dev",
        *in_docker("writable-folders-take-no-setuid-program-and-no-device"),
    ),
    _mutant(
        "an agent is not root",
        'USER = "1000:1000"',
        'USER = "0:0"',
        *in_docker("nobody-in-it-has-privileges"),
    ),
    Mutant(
        "a crash leaves no core",
        _BOX,
        ", (resource.RLIMIT_CORE, 0)]",
        "]",
        in_docker("a-crash-leaves-no-core"),
        DOCKER_WORKS,
    ),
    Mutant(
        "open files are limited",
        _BOX,
        "[(resource.RLIMIT_NOFILE, MOST_FILES), ",
        "[",
        in_docker("open-files-are-bounded"),
        DOCKER_WORKS,
    ),
    Mutant(
        "the guest takes its bounds on",
        "air/sandbox/guest/main.py",
        'bound(config.get("bounds", []))',
        "pass",
        in_docker("open-files-are-bounded", "a-crash-leaves-no-core"),
        DOCKER_WORKS,
    ),
    Mutant(
        "the engine keeps no log of the stream",
        "air/sandbox/docker/engine.py",
        'LogConfig(type="none")',
        'LogConfig(type="json-file")',
        (f"{_CLOSED}::test_the_engine_keeps_no_log_of_a_boxs_stream",),
        DOCKER_WORKS,
    ),
    _mutant(
        "a container removes itself when its guest ends",
        "auto_remove=True",
        "auto_remove=False",
        "tests/docker/test_box_docker.py::test_a_closed_stream_ends_the_container",
    ),
    _mutant(
        "secrets are not in a container's description",
        'return {"HOME": WORKSPACE} | second',
        'return {"HOME": WORKSPACE} | second | spec.env',
        "tests/docker/test_box_docker.py::test_secrets_are_not_in_the_containers_description",
    ),
    _mutant(
        "a user's proxy is not a box's",
        '"use_config_proxy": False',
        '"use_config_proxy": True',
        f"{_CLOSED}::test_a_users_proxy_and_its_password_stay_outside",
    ),
    _mutant(
        "every container says whose it is",
        "        ownership.OWNER_LABEL: ownership.owner(),\n",
        "",
        f"{_CLOSED}::test_every_container_says_whose_it_is_and_until_when",
    ),
    _mutant(
        "every container says until when it may live",
        "ownership.EXPIRES_LABEL: ownership.expires(seconds)",
        'ownership.EXPIRES_LABEL: "0"',
        f"{_CLOSED}::test_every_container_says_whose_it_is_and_until_when",
    ),
    Mutant(
        "a start that is cancelled leaves no container",
        "air/sandbox/docker/box.py",
        "except BaseException as error:  # cancellation too: no container is left",
        "except Exception as error:",
        tuple(
            f"tests/docker/test_box_docker.py::test_a_cancelled_start_leaves_nothing[{delay}]"
            for delay in ("0.0", "0.02", "0.1", "0.2", "0.35")
        ),
        DOCKER_WORKS,
    ),
    Mutant(
        "a box that is closed is gone",
        "air/sandbox/docker/container_stream.py",
        "await daemon.in_thread(lambda: daemon.remove(self.container))",
        "await daemon.in_thread(lambda: None)",
        (f"{_CLOSED}::test_a_box_that_is_closed_is_gone",),
        DOCKER_WORKS,
    ),
    _mutant(
        "the second user cannot read the grader's folders",
        'closed = "0700" if spec.second_user else "0755"',
        'closed = "0755"',
        *in_docker("a-second-user-is-kept-apart"),
    ),
    _mutant(
        "the second user cannot write the workspace",
        'user = 0 if spec.second_user else USER.partition(":")[0]',
        'user = SECOND_UID if spec.second_user else USER.partition(":")[0]',
        *in_docker("a-second-user-is-kept-apart"),
    ),
)
