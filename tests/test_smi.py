"""What nvidia-smi shows, in all the ways in which people hand it over. Tables of driver 580 are as an H200 printed them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from paramedic import run_folder
from paramedic.collect.smi import GPU, MOST_ROWS, PROCESS, Smi, is_table
from paramedic.detect import smi as detect_smi
from paramedic.knowledge import load
from paramedic.model import Finding
from paramedic.pipeline import compile_prefilter, diagnose, read

TABLE_580 = """\
Wed Nov 18 03:54:28 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H200                    On  |   00000000:00:06.0 Off |                    0 |
| N/A   47C    P0            461W /  700W |    2669MiB / 143771MiB |    100%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A             418      C   python3                                2660MiB |
+-----------------------------------------------------------------------------------------+
"""
TABLE_450 = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 450.80.02    Driver Version: 450.80.02    CUDA Version: 11.0     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|                               |                      |               MIG M. |
|===============================+======================+======================|
|   0  GeForce RTX 208...  Off  | 00000000:1A:00.0  On |                  N/A |
| 41%   66C    P2   223W / 250W |   9127MiB / 11019MiB |     98%      Default |
|                               |                      |                  N/A |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|        ID   ID                                                   Usage      |
|=============================================================================|
|    0   N/A  N/A      1514      G   /usr/lib/xorg/Xorg                 56MiB |
|    0   N/A  N/A     30211      C   python                           9067MiB |
+-----------------------------------------------------------------------------+
"""
TABLE_440 = TABLE_450.replace("|  GPU   GI   CI        PID", "|  GPU       PID           ").replace(
    "   N/A  N/A  ", "  "
)
MIG = """\
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |
|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:07:00.0 Off |                   On |
| N/A   36C    P0              81W / 400W |  19000MiB / 40960MiB |     N/A      Default |
|                                         |                      |              Enabled |
+-----------------------------------------+----------------------+----------------------+
| MIG devices:                                                                          |
| GPU  GI  CI  MIG |                   Memory-Usage |        Vol|      Shared           |
|  0    1   0   0  |           9487MiB / 19968MiB   | 42      0 |  3   0    2    0    0 |
+------------------+--------------------------------+-----------+-----------------------+
| Processes:                                                                            |
|    0    1    0      51710      C   python3                                  9437MiB |
|    0    2    0      51711      C   python3                                  9437MiB |
"""
QUERY = """\
timestamp, index, uuid, pci.bus_id, temperature.gpu, power.draw [W], clocks.current.sm [MHz], clocks.max.sm [MHz], \
clocks_event_reasons.active, clocks_event_reasons.hw_slowdown, utilization.gpu [%], memory.used [MiB], memory.total [MiB]
2026/11/18 03:54:28.737, 0, GPU-f614556b-547d-a015-cce2-053fd70e65da, 00000000:00:06.0, 47, 461.70 W, 1980 MHz, \
1980 MHz, 0x0000000000000000, Not Active, 100 %, 2669 MiB, 143771 MiB
"""
APPS = """\
pid, gpu_uuid, gpu_bus_id, used_gpu_memory [MiB], process_name
418, GPU-f614556b-547d-a015-cce2-053fd70e65da, 00000000:00:06.0, 2660 MiB, python3
"""
DMON = """\
#Date        Time         gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk  pviol  tviol     fb
#YYYYMMDD    HH:MM:SS     Idx      W      C      C      %      %      %      %      %      %    MHz    MHz      %   bool     MB
 20261118    03:54:29       0    461     48     59    100    100      0      0      0      0   3201   1980      0      0   2669
 20261118    03:54:30       0    461     48     59    100    100      0      0      0      0   3201   1980      0      1   2669
"""
DMON_CSV = """\
#gpu, pwr, gtemp, mtemp, sm, mem, enc, dec, jpg, ofa, mclk, pclk, pviol, tviol
#Idx, W, C, C, %, %, %, %, %, %, MHz, MHz, %, bool
 0, 461, 48, 59, 100, 100, 0, 0, 0, 0, 3201, 1980, 0, 0
"""
PMON = """\
#Time         gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command
#HH:MM:SS     Idx           #    C/G      %      %      %      %      %      %     MB     MB    name
 03:54:32       0        418     C     99    100      -      -      -      -   2660      0    python3
 03:54:32       1          -     -      -      -      -      -      -      -      -      -    -
"""
LOG = """\
==============NVSMI LOG==============

Timestamp                                              : Wed Nov 18 03:54:32 2026
Attached GPUs                                          : 2
GPU 00000000:00:06.0
    Performance State                                  : P0
    Clocks Event Reasons
        Idle                                           : Not Active
        SW Power Cap                                   : Not Active
        HW Slowdown                                    : Active
            HW Thermal Slowdown                        : Active
            HW Power Brake Slowdown                    : Not Active
        SW Thermal Slowdown                            : Not Active
    Clocks Event Reasons Counters
        HW Thermal Slowdown                            : 0 us
    FB Memory Usage
        Total                                          : 143771 MiB
        Used                                           : 2669 MiB
    Utilization
        GPU                                            : 100 %
    Temperature
        GPU Current Temp                               : 91 C
    Clocks
        SM                                             : 705 MHz
    Max Clocks
        SM                                             : 1980 MHz
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 418
            Type                          : C
            Name                          : python3
            Used GPU Memory               : 2660 MiB
GPU 00000000:00:07.0
    Clocks Event Reasons
        HW Slowdown                                    : Not Active
"""


def seen(text: str) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    smi = Smi()
    for number, line in enumerate(text.split("\n"), 1):
        smi.feed(line, number)
    found = list(smi.found())
    return [fields for kind, _, _, fields in found if kind == GPU], [f for kind, _, _, f in found if kind == PROCESS]


BOTH = {"1 hardware slowdown", "1 hardware thermal slowdown"}


def slowed(card: dict[str, object]) -> set[str]:
    return set(str(card["slowed"]).split("\n"))


def test_the_table_tells_of_gpus_and_processes() -> None:
    cards, holders = seen(TABLE_580)
    (card,) = cards
    assert (card["index"], card["bus"], card["temperature"], card["power"]) == (0, "00:06", 47, 461)
    assert (card["used"], card["total"], card["busy"]) == (2669, 143771, 100)
    assert [(h["index"], h["pid"], h["type"], h["memory"]) for h in holders] == [(0, 418, "C", 2660)]


@pytest.mark.parametrize("text", [TABLE_450, TABLE_440, "\n".join(f"[node1] {row}" for row in TABLE_450.split("\n"))])
def test_tables_of_older_drivers_and_behind_a_prefix(text: str) -> None:
    (card,), holders = seen(text)
    assert (card["used"], card["busy"], card["temperature"]) == (9127, 98, 66)
    assert [(h["pid"], h["type"], h["name"]) for h in holders] == [
        (1514, "G", "/usr/lib/xorg/Xorg"),
        (30211, "C", "python"),
    ]


def test_a_divided_gpu_is_known_as_such_and_its_parts_are_no_gpus() -> None:
    (card,), holders = seen(MIG)
    assert card["divided"] is True
    assert (card["used"], len(holders)) == (19000, 2)


def test_tables_as_csv() -> None:
    (card,), holders = seen(QUERY + APPS)
    assert (card["clock"], card["most"], card["slowed"], card["reasons"]) == (1980, 1980, "", True)
    assert [(h["bus"], h["pid"], h["memory"]) for h in holders] == [("00:06", 418, 2660)]


def test_without_a_head_the_command_names_the_columns() -> None:
    (card,), _ = seen(
        "$ ssh node-7 nvidia-smi --query-gpu=index,clocks.sm,clocks_throttle_reasons.active --format=csv,noheader,nounits\n"
        "3, 705, 0x0000000000000048"
    )
    assert (card["node"], card["index"], card["clock"]) == ("node-7", 3, 705)
    assert slowed(card) == BOTH


def test_dmon_and_pmon() -> None:
    (card,), _ = seen(DMON)
    assert (card["looks"], card["clock"], card["power"], card["used"]) == (2, 1980, 461, 2669)
    assert card["slowed"] == "1 hardware thermal slowdown"
    assert seen(DMON_CSV)[0][0]["busy"] == 100
    assert [(h["index"], h["pid"], h["memory"], h["name"]) for h in seen(PMON)[1]] == [(0, 418, 2660, "python3")]


def test_the_long_form_tells_reasons() -> None:
    cards, holders = seen(LOG)
    assert [card["index"] for card in cards] == [0, 1]
    assert slowed(cards[0]) == BOTH
    assert (cards[0]["clock"], cards[0]["temperature"], cards[0]["used"]) == (705, 91, 2669)
    assert (cards[1]["slowed"], cards[1]["reasons"]) == ("", True)
    assert holders[0]["pid"] == 418


def test_of_one_gpu_out_of_several_the_number_is_not_guessed() -> None:
    (card,), _ = seen(LOG.partition("GPU 00000000:00:07.0")[0])
    assert card["index"] is None


def test_the_processes_are_those_of_the_last_moment() -> None:
    _, holders = seen(TABLE_580 + TABLE_580.replace(" 418 ", " 419 "))
    assert [holder["pid"] for holder in holders] == [419]


@pytest.mark.parametrize("text", [TABLE_580, MIG, QUERY, APPS, DMON, PMON, LOG])
def test_whatever_is_broken_is_read_without_an_error(text: str) -> None:
    chance = random.Random(7)
    for _ in range(150):
        broken = list(text)
        for _ in range(chance.randrange(1, 30)):
            broken[chance.randrange(len(broken))] = chance.choice("|,0-\n A:#9%[]\t²")
        seen("".join(broken))


def test_of_an_endless_table_only_so_much_is_read() -> None:
    smi = Smi()
    smi.feed("index, temperature.gpu", 1)
    for number in range(MOST_ROWS + 10):
        smi.feed(f"{number % 900}, 60", number)
    assert smi.cut
    assert not smi.open


def test_a_table_in_a_log_ends_where_the_log_goes_on() -> None:
    smi = Smi()
    for number, line in enumerate([*TABLE_580.split("\n"), *(f"step {n} loss 2.0" for n in range(100))]):
        smi.feed(line, number)
    assert not smi.open


def test_a_csv_file_is_known_by_its_head() -> None:
    assert is_table(QUERY.encode())
    assert is_table(b"\xef\xbb\xbf" + QUERY.encode()[:512])
    assert not is_table(b"index,name,price\n0,a,3\n")
    assert not is_table(b"image,label,memory\n0,a,3\n")


def verdict_of(folder: Path, **files: str) -> tuple[Finding | None, set[str]]:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    report = diagnose([str(folder)])
    return report.verdict, {finding.rule for finding in report.findings}


HEAD = "index, temperature.gpu, clocks.current.sm [MHz], clocks_throttle_reasons.active, utilization.gpu [%]\n"


def clocks(slow: int, ranks: int = 4) -> str:
    rows = [
        f"{n}, {91 if n == slow else 62}, {705 if n == slow else 1980} MHz, 0x00000000000000{'48' if n == slow else '00'}, 99 %"
        for n in range(ranks)
    ]
    return HEAD + "\n".join(rows * 3) + "\n"


def steps(slow: int, ranks: int = 4) -> str:
    rows = [
        f"step {step} loss 2.{9 - step} compute ms " + " ".join("980" if n == slow else "410" for n in range(ranks))
        for step in range(9)
    ]
    return "\n".join(rows) + "\n"


def test_a_slow_gpu_is_why_its_rank_is_slow(tmp_path: Path) -> None:
    verdict, _ = verdict_of(tmp_path, train_log=steps(2), smi_csv=clocks(2))
    assert verdict is not None
    assert (verdict.symptom, verdict.ranks, verdict.causes[0].id) == ("straggler-or-imbalance", (2,), "hardware-fault")


def test_a_recording_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "smi.csv").write_text(clocks(2))
    (tmp_path / "logs" / "train.log").write_text("step 1 loss 2\n")
    run_folder.write(read([str(tmp_path / "logs")], compile_prefilter(load())), tmp_path / "run")
    verdict = diagnose([str(tmp_path / "run")]).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("PERF040", (2,))


def test_the_log_knows_better_which_rank_is_slow(tmp_path: Path) -> None:
    verdict, rules = verdict_of(tmp_path, train_log=steps(1), smi_csv=clocks(2))
    assert verdict is not None
    assert (verdict.rule, verdict.ranks, verdict.causes[0].id) == ("PERF003", (1,), "hardware-fault")
    assert "PERF040" in rules


def test_a_slow_gpu_that_may_be_anothers_is_a_remark(tmp_path: Path) -> None:
    verdict, rules = verdict_of(tmp_path, train_log="world_size: 2\nstep 1 loss 2\n", smi_csv=clocks(6, 8))
    assert verdict is None
    assert "PERF040" in rules


def test_nodes_in_the_order_of_their_names(tmp_path: Path) -> None:
    each = "$ srun -w node-{} nvidia-smi --query-gpu=index,temperature.gpu --format=csv\n"
    text = "".join(each.format(n) + clocks(1 if n == 12 else 9) for n in (9, 10, 12))
    verdict, _ = verdict_of(tmp_path, train_log="world_size: 12\nstep 1 loss 2\n", smi_txt=text)
    assert verdict is not None
    assert verdict.ranks == (9,)


def test_a_table_that_is_pasted_into_a_healthy_log_accuses_nobody(tmp_path: Path) -> None:
    verdict, rules = verdict_of(tmp_path, train_log=f"step 1 loss 2.0\n{TABLE_580}step 2 loss 1.9\nstep 3 loss 1.8\n")
    assert verdict is None
    assert not rules


BROKEN = TABLE_580.replace("|                    0 |", "|                   17 |", 1)
LOST = TABLE_580.replace("NVIDIA H200", "ERR!       ").replace(
    "  47C    P0            461W", "  ERR!   ERR!          ERR!"
)
ECC_LOG = """\
==============NVSMI LOG==============
Attached GPUs                             : 2
GPU 00000000:00:06.0
    Product Name                          : NVIDIA H200
    ECC Errors
        Volatile
            SRAM Correctable              : 7
            SRAM Uncorrectable Parity     : 1
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 9
            DRAM Uncorrectable            : 2
        Aggregate
            SRAM Uncorrectable Parity     : 40
            DRAM Uncorrectable            : 40
    Retired Pages
        Double Bit ECC                    : N/A
GPU 00000000:00:07.0
    Product Name                          : Tesla V100-SXM2-16GB
    ECC Errors
        Volatile
            Single Bit
                Device Memory             : 8
                Total                     : 8
            Double Bit
                Device Memory             : 4
                Total                     : 4
        Aggregate
            Double Bit
                Total                     : 50
    Temperature
        GPU Current Temp                  : GPU is lost
"""


def test_errors_that_nobody_could_correct_are_counted_since_the_driver_was_loaded() -> None:
    (card,), _ = seen(BROKEN)
    assert (card["uncorrected"], card["unread"]) == (17, False)
    assert "17 |" in str(card["bad_text"])
    cards, _ = seen(ECC_LOG)
    assert [(card["uncorrected"], card["unread"]) for card in cards] == [(3, False), (4, True)]
    (card,), _ = seen("index, ecc.errors.uncorrected.volatile.total, temperature.gpu\n3, 5, 40\n")
    assert card["uncorrected"] == 5


@pytest.mark.parametrize("text", [TABLE_580, TABLE_450, MIG, QUERY, LOG])
def test_a_gpu_without_errors_is_not_called_broken(text: str) -> None:
    cards, _ = seen(text)
    assert all("uncorrected" not in card for card in cards)


def test_a_fan_or_power_sensor_that_cannot_be_read_is_no_broken_gpu() -> None:
    (card,), _ = seen(TABLE_580.replace("| N/A   47C    P0            461W", "| ERR!  47C    P0            ERR!"))
    assert "unread" not in card


def test_a_gpu_that_cannot_be_read_is_a_remark(tmp_path: Path) -> None:
    verdict, rules = verdict_of(tmp_path, train_log="step 1 loss 2.0\nstep 2 loss 1.9\n", smi_txt=LOST)
    assert (verdict, rules) == (None, {"GPU043"})


def test_errors_of_a_gpus_memory_are_a_remark_until_its_rank_fails(tmp_path: Path) -> None:
    table = "index, temperature.gpu, ecc.errors.uncorrected.volatile.total\n0, 50, 0\n1, 51, 3\n"
    verdict, rules = verdict_of(tmp_path, train_log="world_size: 2\nstep 1 loss 2.0\n", smi_csv=table)
    assert (verdict, rules) == (None, {"GPU042"})
    died = "world_size: 2\n[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    verdict, rules = verdict_of(tmp_path, train_log=died, smi_csv=table)
    assert verdict is not None
    assert (verdict.ranks, verdict.causes[0].id) == ((1,), "hardware-fault")
    assert "GPU042" in rules


FULL = """\
world_size: 2
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/dee/train.py", line 30, in <module>
[rank0]:     model = build().to("cuda:0")
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 172.00 MiB. GPU 0 has a total capacity of 140.40 GiB \
of which 84.00 MiB is free. Process 418 has 110.00 GiB memory in use. Including non-PyTorch memory, this process has 30.00 GiB \
memory in use.
"""


@pytest.mark.parametrize(
    ("home", "first"), [("carl", "seems to be another user's"), ("dee", "if a run of yours has left it behind")]
)
def test_whoever_holds_the_memory_is_named_and_another_users_process_is_not_to_be_ended(
    tmp_path: Path, home: str, first: str
) -> None:
    table = TABLE_580.replace("C   python3            ", f"C   /home/{home}/bin/python3")
    verdict, _ = verdict_of(tmp_path, train_log=FULL, smi_txt=table)
    assert verdict is not None
    assert f"held by process 418 (/home/{home}/bin/python3)" in verdict.summary
    assert first in verdict.fixes[0].title
    runs = [str(fix.action.get("run")) for fix in verdict.fixes]
    assert any(run.startswith("ps -o pid,ppid,user,lstart,cmd -p 418") for run in runs)
    assert ("kill 418" in "".join(runs)) == (home == "dee")
    assert all("End the process" not in fix.title for fix in verdict.fixes)


def test_a_thousand_cards_are_compared_with_what_is_usual_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[int] = []
    usual = detect_smi._usual

    def counted(name: str, cards: Sequence[detect_smi.Card]) -> float | None:
        asked.append(len(cards))
        return usual(name, cards)

    monkeypatch.setattr(detect_smi, "_usual", counted)
    rows = "".join(f"{n}, 98, {1980 if n % 50 else 900}, 80, 65\n" for n in range(1000))
    table = "index, utilization.gpu [%], clocks.sm [MHz], memory.total [MiB], temperature.gpu\n" + rows
    (tmp_path / "gpus.csv").write_text(table)
    diagnose([str(tmp_path)])
    assert 0 < sum(asked) <= 5 * 1000


def test_what_dcgms_exporter_shows_is_read_like_the_drivers_own_words() -> None:
    def row(what: str, gpu: int, value: int, host: str = "n3") -> str:
        return f'DCGM_FI_DEV_{what}{{gpu="{gpu}",UUID="GPU-{gpu}",device="nvidia{gpu}",modelName="H100",Hostname="{host}"}} {value}\n'

    shown = "# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n" + row("SM_CLOCK", 0, 1980) + row("SM_CLOCK", 1, 1290)
    shown += row("GPU_UTIL", 0, 99) + row("GPU_UTIL", 1, 98) + row("CLOCK_THROTTLE_REASONS", 0, 4)
    cards, _ = seen(shown + row("CLOCK_THROTTLE_REASONS", 1, 72) + row("GPU_TEMP", 1, 87) + row("SM_CLOCK", 1, 1290))
    assert [(card["node"], card["index"], card["clock"]) for card in cards] == [("n3", 0, 1980.0), ("n3", 1, 1290.0)]
    assert slowed(cards[0]) == {""}
    assert slowed(cards[1]) == BOTH
    assert cards[1]["looks"] == 2, "the same value once more is of a later moment"
