"""The parts around a step: weights, half precision, learning rates, alerts."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from cleanfeed import (
    Checkpoints,
    Curriculum,
    CurriculumSampler,
    FlattenCollator,
    PadCollator,
    Policy,
    TrainingGuard,
)
from cleanfeed.errors import MisuseError, TrainingError
from cleanfeed.runs.incident_files import read_incidents
from cleanfeed.runs.layout import RunDir
from cleanfeed.runs.ledger import read_ledger
from cleanfeed.training.agreement import Agreement
from cleanfeed.training.alerts import Alerts
from cleanfeed.training.logs import read_log
from cleanfeed.training.numbers import combine
from cleanfeed.training.shares import Shares, count, sample_ids, weigh

from .world import QUIET, VOCABULARY, Seen, Tiny, train


def share(batches: list[dict[str, Any]]) -> Shares:
    """Return what the only rank holds."""
    counts = count(batches, [sample_ids(one) for one in batches])
    return weigh(counts, counts.row(), 1)


def test_weights_are_shares_of_label_tokens_and_pad_rows_count_for_nothing() -> None:
    long = {"labels": torch.tensor([[1, 2, 3, 4], [1, 2, -100, -100]]), "sample_ids": torch.tensor([5, 6])}
    long["attention_mask"] = (long["labels"] != -100).long()
    blank = {"labels": torch.full((2, 4), -100), "sample_ids": torch.tensor([-1, -1])}
    blank["attention_mask"] = torch.tensor([[1, 0, 0, 0]] * 2)
    batches = [long, blank]
    found = share(batches)
    assert (found.labels, found.weights, found.samples, found.tokens) == ((4, 0), (1.0, 0.0), 2, 6)


@pytest.mark.parametrize("ids", [torch.arange(8)[::4], torch.arange(4).reshape(2, 2)[:, 0], [0, 4]])
def test_sample_ids_of_any_make_are_counted(ids: torch.Tensor | list[int]) -> None:
    labels = torch.tensor([[1, 2, 3, 4], [1, 2, -100, -100]])
    batch = {"labels": labels, "attention_mask": (labels != -100).long(), "sample_ids": ids}
    assert (share([batch]).samples, share([batch]).tokens) == (2, 6)
    known = np.array([0, 4])
    known.flags.writeable = False
    assert share([batch | {"sample_ids": known}]).samples == 2


def test_batches_laid_end_to_end_and_batches_of_text_are_counted_as_well() -> None:
    flat = {
        "labels": torch.tensor([[-100, 2, 3, -100, 5, -100, -100]]),
        "cu_seqlens": torch.tensor([0, 3, 5, 7]),
        "sample_ids": torch.tensor([1, 2, -1]),
    }
    found = share([flat])
    assert (found.labels, found.samples, found.tokens) == ((3,), 2, 5)
    text = {"text": ["abc", "", "de"], "sample_ids": torch.tensor([1, -1, 2])}
    found = share([text])
    assert (found.labels, found.samples, found.tokens) == ((2,), 2, 5)
    with pytest.raises(TrainingError, match="got list, expected a mapping with sample_ids"):
        sample_ids([1])


def test_a_curriculum_laid_end_to_end_is_trained_and_counted_like_a_padded_one(
    clean: Path, tmp_path: Path
) -> None:
    data = Curriculum(clean)
    tokens = []
    for name, collate in (("pad", PadCollator(pad_id=0)), ("flat", FlattenCollator(pad_id=0))):
        sampler = CurriculumSampler(data, global_batch=32, micro_batch=8)
        guard = TrainingGuard(sampler, tmp_path / name, policy=QUIET)
        for step in guard.steps(DataLoader(data, batch_sampler=sampler, collate_fn=collate)):
            for _ in step:
                step.observe(2.0)
            step.accept()
            step.commit()
        tokens.append([(line.samples, line.tokens) for line in read_ledger(RunDir(tmp_path / name))])
    assert tokens[0] == tokens[1]


def test_a_micro_batch_of_quarantined_rows_alone_changes_nothing(clean: Path, tmp_path: Path) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=4, micro_batch=1)
    sampler.quarantine(sampler.sample_hashes(0)[1:2])
    model = Tiny()
    guard = TrainingGuard(sampler, tmp_path, policy=QUIET)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))
    step = next(steps := guard.steps(loader))
    losses = []
    for batch in step:
        logits = model(batch["input_ids"])[:, :-1].reshape(-1, VOCABULARY)
        loss = torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:].reshape(-1))
        before = None if model.out.weight.grad is None else model.out.weight.grad.clone()
        (loss * step.weight).backward()
        step.observe(loss)
        losses.append(float(loss.detach()))
        if len(losses) == 2:
            assert step.weight == 0.0
            assert torch.equal(before, model.out.weight.grad)
    assert np.isnan(losses[1])
    assert step.accept(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    step.commit()
    steps.close()
    (line,) = read_ledger(RunDir(tmp_path))
    assert (line.samples, line.finite) == (3, True)
    assert line.loss == pytest.approx(np.nanmean(losses), rel=0.05)


def test_a_value_that_is_not_finite_is_counted_and_never_added() -> None:
    agreement = Agreement()
    nan, inf = float("nan"), float("inf")
    one = combine(agreement, [2.0, nan], [3, 1], 1.5, {})
    assert (one.finite, one.sick_ranks, one.worst_micro_loss, one.grad_norm) == (False, (0,), None, 1.5)
    assert np.isnan(one.loss)
    two = combine(agreement, [2.0, 4.0], [3, 1], inf, {"val_loss": 3.0, "update_norm": nan})
    assert (two.finite, two.loss, two.worst_micro_loss, dict(two.extra)) == (
        False,
        2.5,
        4.0,
        {"val_loss": 3.0},
    )
    three = combine(agreement, [2.0], [1], inf, {}, scaled=True)
    assert (three.finite, three.overflow) == (True, True)
    four = combine(agreement, [nan], [1], inf, {}, scaled=True)
    assert (four.finite, four.overflow) == (False, False)
    assert combine(agreement, [2.0], [1], None, {}).grad_norm is None


class Scaler:
    """What the guard asks of a gradient scaler."""

    def is_enabled(self) -> bool:
        return True

    def get_scale(self) -> float:
        return 65536.0


def test_an_overflow_in_half_precision_is_a_skipped_step_and_no_incident(clean: Path, tmp_path: Path) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=32)
    guard = TrainingGuard(sampler, tmp_path, policy=QUIET, scaler=Scaler())
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in guard.steps(DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))):
        for _ in step:
            step.observe(2.0)
        accepted = step.accept(float("inf") if step.number == 2 else 1.0)
        assert accepted == (step.number != 2)
        if step.number not in (2, 4):  # at step 4 the scaler itself finds an overflow
            optimizer.step()
        step.commit()
    lines = list(read_ledger(RunDir(tmp_path)))
    assert [line.step for line in lines if not line.accepted] == [2, 4]
    assert [line.step for line in lines if not line.finite] == [2]
    assert lines[0].metrics == {"loss_scale": 65536.0}
    assert RunDir(tmp_path).incident_numbers() == []


def test_a_gradient_that_overflows_more_than_twenty_times_in_a_row_is_the_states_fault(
    clean: Path, tmp_path: Path
) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=8)
    checkpoints = Checkpoints.of(model, optimizer, every=5)
    guard = TrainingGuard(sampler, tmp_path, checkpoints, QUIET, scaler=Scaler())
    refused = 0
    for step in guard.steps(DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))):
        for _ in step:
            step.observe(2.0)
        refused += not step.accept(float("inf") if step.number > 5 and guard.attempt == 1 else 1.0)
        if step.accepted:
            optimizer.step()
        step.commit()
    (incident,) = read_incidents(RunDir(tmp_path))
    assert (incident.rule, incident.onset_step, incident.trip_step) == ("nonfinite", 6, 26)
    assert (refused, incident.action, incident.outcome) == (21, "rollback", "state_not_data")
    assert incident.actions[-1]["why"] == (
        "21 different batches in a row are sick with unharmed weights: state, not data"
    )
    assert sampler.exclusions.rows.tolist() == []


def test_a_batch_without_a_label_token_is_accepted_and_judged_by_nobody(clean: Path, tmp_path: Path) -> None:
    class Unlabelled(PadCollator):
        def __call__(self, batch: Any) -> dict[str, Any]:
            found = super().__call__(batch)
            if 3 in found["sample_ids"]:
                found["labels"].fill_(-100)
            return found

    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=32)
    guard = TrainingGuard(sampler, tmp_path, policy=Policy(grace=0))
    for step in guard.steps(DataLoader(data, batch_sampler=sampler, collate_fn=Unlabelled(pad_id=0))):
        nothing = 3 in step.ids[0]
        for _ in step:
            step.observe(float("nan") if nothing else 2.0)
        assert step.weight == (0.0 if nothing else 1.0)
        assert step.accept(0.0 if nothing else 1.0)
        step.commit()
    lines = list(read_ledger(RunDir(tmp_path)))
    assert [line.loss for line in lines].count(None) == 1
    assert {(line.accepted, line.finite) for line in lines} == {(True, True)}
    assert RunDir(tmp_path).incident_numbers() == []
    log = read_log(str(tmp_path))
    assert (len(log.rows), log.left_out) == (len(lines) - 1, 1)


def test_a_lowered_learning_rate_is_in_force_and_unseen_by_the_scheduler(clean: Path, tmp_path: Path) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=32)
    guard = TrainingGuard(sampler, tmp_path, policy=QUIET)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in guard.steps(DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0))):
        for _ in step:
            step.observe(2.0)
        before = float(model.weight.detach())
        model.weight.grad = torch.ones(1, 1)
        guard.lr.factor = 0.1 if step.number == 2 else 1.0
        assert step.accept(1.0)
        optimizer.step()
        scheduler.step()
        step.commit()
        expected = 0.5 ** (step.number - 1) * (0.1 if step.number == 2 else 1.0)
        assert before - float(model.weight.detach()) == pytest.approx(expected, rel=1e-3)
        if step.number == 4:
            break
    assert [line.lr for line in read_ledger(RunDir(tmp_path))] == [1.0, 0.05, 0.25, 0.125]
    optimizer.step()  # a loop that was left leaves optimizers alone


def test_an_optimizer_that_steps_although_the_step_was_refused_is_an_error(
    clean: Path, tmp_path: Path
) -> None:
    data = Curriculum(clean)
    sampler = CurriculumSampler(data, global_batch=32)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    guard = TrainingGuard(sampler, tmp_path, policy=Policy(), optimizer=optimizer)
    steps = guard.steps(DataLoader(data, batch_sampler=sampler, collate_fn=PadCollator(pad_id=0)))
    step = next(steps)
    for _ in step:
        step.observe(float("nan"))
    assert not step.accept(1.0)
    with pytest.raises(TrainingError, match="the optimizer steps although the step was not accepted: SGD"):
        optimizer.step()
    steps.close()


def test_alerts_reach_functions_and_webhooks_and_their_failure_stops_nothing(
    clean: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[dict[str, Any]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    def fails(_: dict[str, Any]) -> None:
        raise RuntimeError("no line")

    def nan(seen: Seen, step: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss * float("nan") if step.slot == 3 else loss

    told: list[dict[str, Any]] = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/hook"
        targets = [fails, told.append, address, "http://127.0.0.1:1/nobody"]
        with caplog.at_level(logging.WARNING):
            train(clean, tmp_path, batch=32, on_loss=nan, on_alert=targets)
        for thread in threading.enumerate():
            if thread.name == "cleanfeed-alert":
                thread.join()
        server.shutdown()
    assert [alert["event"] for alert in told] == ["incident", "incident"]
    assert (told[0]["incident"], told[0]["step"], told[0]["action"]) == (1, 4, "skip_step")
    assert sorted(received, key=str) == sorted(told, key=str)
    assert "an alert failed: RuntimeError: no line" in caplog.text
    assert "an alert was not delivered: URLError" in caplog.text


def test_an_alert_that_is_neither_a_function_nor_an_address_is_refused() -> None:
    with pytest.raises(MisuseError, match="an alert has no address: on_alert: got 'ops'"):
        Alerts("ops", "run")
    Alerts(None, "run").send("incident", "nobody is told")
