"""Run × knowledge → findings. Pure functions over Events; nothing here reads a byte or decides who failed first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from paramedic.detect import (
    adapters,
    advisories,
    agreement,
    checkpoints,
    collectives,
    comparisons,
    description,
    drift,
    environment,
    exceptions,
    exits,
    feeding,
    gpus,
    growth,
    hang,
    hosts,
    keys,
    learning,
    match,
    memory,
    network,
    numerics,
    odd,
    orders,
    pace,
    parts,
    payload,
    placement,
    rates,
    reach,
    recorded,
    recordings,
    recovery,
    replicas,
    restoring,
    resumes,
    routes,
    sentinels,
    skew,
    stacks,
    stragglers,
    training,
    transport,
    versions,
    waste,
    watched,
)
from paramedic.detect.answers import Failed, answer
from paramedic.detect.match import Signatures
from paramedic.detect.nodes import alike
from paramedic.detect.topology import nodes
from paramedic.detect.where import within_one_host
from paramedic.knowledge import Knowledge, Rule
from paramedic.knowledge.advisories import Advisory
from paramedic.model import Finding, Run
from paramedic.prefilter import Prefilter

Detector = Callable[[Run, Rule, Sequence[Finding]], Iterable[Finding]]

EVENT_DETECTORS: dict[str, Detector] = {
    "memory.exhausted": memory.exhausted,
    "memory.fragmented": memory.fragmented,
    "memory.shared": memory.shared,
    "memory.limited": memory.limited,
    "collectives.fingerprints": collectives.fingerprints,
    "collectives.unlike_models": collectives.unlike_models,
    "collectives.stalled": collectives.stalled,
    "collectives.shared_gpus": collectives.shared_gpus,
    "keys.prefixed": keys.prefixed,
    "keys.only_missing": keys.only_missing,
    "keys.state_of_another_shape": keys.state_of_another_shape,
    "exits.killed": exits.killed,
    "exits.crashed": exits.crashed,
    "exits.loader_killed": exits.loader_killed,
    "exits.killed_while_full": exits.killed_while_full,
    "exits.terminated": exits.terminated,
    "exits.wordless": exits.wordless,
    "exceptions.unrecognised": exceptions.unrecognised,
    "numerics.ended_non_finite": numerics.ended_non_finite,
}
"""They judge single events, in this order: each sees what was found before it."""

RUN_DETECTORS: dict[str, Detector] = {
    "watched.frozen": watched.frozen,
    "recorded.order": recorded.order,
    "recorded.sizes": recorded.sizes,
    "recorded.roots": recorded.roots,
    "recorded.peers": recorded.peers,
    "recorded.missing": recorded.missing,
    "recorded.ahead": recorded.ahead,
    "recorded.silent": recorded.silent,
    "recorded.unstarted": recorded.unstarted,
    "recorded.stalled": recorded.stalled,
    "recorded.last": recorded.last,
    "watched.unlike_calls": watched.unlike_calls,
    "watched.elsewhere": watched.elsewhere,
    "stacks.process_stopped": stacks.process_stopped,
    "stacks.lock_file": stacks.lock_file,
    "stacks.rank_elsewhere": stacks.rank_elsewhere,
    "stacks.rank_not_at_meeting": stacks.rank_not_at_meeting,
    "stacks.different_collectives": stacks.different_collectives,
    "hang.rank_missing": hang.rank_missing,
    "hang.rank_lost": hang.rank_lost,
    "hang.rank_left": hang.rank_left,
    "recovery.failed": recovery.failed,
    "recovery.on_the_same_part": recovery.on_the_same_part,
    "stragglers.more_work": stragglers.more_work,
    "stragglers.same_work": stragglers.same_work,
    "stragglers.slow_input": stragglers.slow_input,
    "stragglers.throttled": stragglers.throttled,
    "stragglers.all_throttled": stragglers.all_throttled,
    "stragglers.waits_for_input": stragglers.waits_for_input,
    "stragglers.extremes": stragglers.extremes,
    "stragglers.waits_for_peers": stragglers.waits_for_peers,
    "transport.sockets_beside_rdma": transport.sockets_beside_rdma,
    "transport.peer_to_peer_off": transport.peer_to_peer_off,
    "transport.met_over_a_local_link": transport.met_over_a_local_link,
    "transport.other_version": transport.other_version,
    "transport.not_direct_on_some": transport.not_direct_on_some,
    "stragglers.below_expected": stragglers.below_expected,
    "growth.memory": growth.memory,
    "growth.savings": growth.savings,
    "growth.slowing": growth.slowing,
    "growth.slower_since": growth.slower_since,
    "growth.retraced": growth.retraced,
    "placement.other_than_planned": placement.other_than_planned,
    "placement.each_alone": placement.each_alone,
    "placement.same_task_twice": placement.same_task_twice,
    "placement.each_node_alone": placement.each_node_alone,
    "placement.each_does_all": placement.each_does_all,
    "placement.on_other_device": placement.on_other_device,
    "placement.gpus_left_out": placement.gpus_left_out,
    "placement.slow_backend": placement.slow_backend,
    "resumes.elsewhere": resumes.elsewhere,
    "resumes.some_shards_missing": resumes.some_shards_missing,
    "training.blow_up": training.blow_up,
    "rates.scale_collapsed": rates.scale_collapsed,
    "rates.schedule_ended": rates.schedule_ended,
    "training.never_changes": training.never_changes,
    "training.never_moves": training.never_moves,
    "training.flat": training.flat,
    "odd.not_finite": odd.not_finite,
    "odd.out_of_line": odd.out_of_line,
    "odd.far_from_all": odd.far_from_all,
    "comparisons.unlike_reference": comparisons.unlike_reference,
    "comparisons.amiss": comparisons.amiss,
    "comparisons.part_saved": comparisons.part_saved,
    "comparisons.other_batch": comparisons.other_batch,
    "comparisons.measured_otherwise": comparisons.measured_otherwise,
    "comparisons.above_limit": comparisons.above_limit,
    "comparisons.parts_unlike": comparisons.parts_unlike,
    "comparisons.unequal_shards": comparisons.unequal_shards,
    "growth.piled_up": growth.piled_up,
    "growth.printed_as_one_unit": growth.printed_as_one_unit,
    "rates.still_scaled": rates.still_scaled,
    "rates.schedule_too_long": rates.schedule_too_long,
    "training.average_begun_anew": training.average_begun_anew,
    "training.average_behind": training.average_behind,
    "training.guesses": training.guesses,
    "training.lost_again": training.lost_again,
    "training.no_gain": training.no_gain,
    "training.behind_smaller_batch": training.behind_smaller_batch,
    "drift.replicas": drift.replicas,
    "drift.never_updated": drift.never_updated,
    "drift.counted_twice": drift.counted_twice,
    "drift.same_data": drift.same_data,
    "drift.same_order": drift.same_order,
    "drift.joined_wrongly": drift.joined_wrongly,
    "description.described": description.described,
    "hang.silent_setup": hang.silent_setup,
    "exceptions.last_words": exceptions.last_words,
    "exceptions.bare": exceptions.bare,
    "watched.nobody_moves": watched.nobody_moves,
    "gpus.new_errors": gpus.new_errors,
    "gpus.slowed": gpus.slowed,
    "waste.one_holds_most": waste.one_holds_most,
    "waste.states_of_others": waste.states_of_others,
    "waste.one_recomputed_piece": waste.one_recomputed_piece,
    "waste.sharded_by_leaf": waste.sharded_by_leaf,
    "waste.rows_untouched": waste.rows_untouched,
    "pace.slow_rank": pace.slow_rank,
    "pace.waited_at_times": pace.waited_at_times,
    "pace.computes_more": pace.computes_more,
    "pace.slow_link": pace.slow_link,
    "pace.waits_for_data": pace.waits_for_data,
    "pace.workers_begin_again": pace.workers_begin_again,
    "pace.saves_in_every_step": pace.saves_in_every_step,
    "recordings.results_part": recordings.results_part,
    "recordings.not_finite": recordings.not_finite,
    "recordings.replicas_part": recordings.replicas_part,
    "recordings.shared_data_differs": recordings.shared_data_differs,
    "recordings.same_random": recordings.same_random,
    "recordings.fed_twice": recordings.fed_twice,
    "recordings.same_batches": recordings.same_batches,
    "replicas.gradients_not_averaged": replicas.gradients_not_averaged,
    "replicas.started_unlike": replicas.started_unlike,
    "replicas.stepped_unlike": replicas.stepped_unlike,
    "replicas.nothing_changes": replicas.nothing_changes,
    "replicas.summed_not_averaged": replicas.summed_not_averaged,
    "parts.whole_parts_unlike": parts.whole_parts_unlike,
    "replicas.left_out_of_optimizer": replicas.left_out_of_optimizer,
    "replicas.rates_unlike": replicas.rates_unlike,
    "replicas.unlike_beside": replicas.unlike_beside,
    "parts.norms_unlike": parts.norms_unlike,
    "orders.cleared_before_step": orders.cleared_before_step,
    "orders.never_cleared": orders.never_cleared,
    "orders.clipped_in_vain": orders.clipped_in_vain,
    "orders.clipped_while_scaled": orders.clipped_while_scaled,
    "orders.each_part_averaged": orders.each_part_averaged,
    "orders.left_out_too_late": orders.left_out_too_late,
    "orders.views_of_more": orders.views_of_more,
    "parts.averaged_over_parts": parts.averaged_over_parts,
    "parts.mesh_never_used": parts.mesh_never_used,
    "feeding.classes_apart": feeding.classes_apart,
    "feeding.one_class_at_a_time": feeding.one_class_at_a_time,
    "replicas.buffers_part": replicas.buffers_part,
    "parts.tied_copies_part": parts.tied_copies_part,
    "orders.one_call_each": orders.one_call_each,
    "orders.moved_again": orders.moved_again,
    "orders.buffers_sent": orders.buffers_sent,
    "orders.plan_names_nothing": orders.plan_names_nothing,
    "orders.recomputes_nothing": orders.recomputes_nothing,
    "orders.loss_divided_by_ranks": orders.loss_divided_by_ranks,
    "orders.trained_in_evaluation": orders.trained_in_evaluation,
    "orders.evaluated_in_training": orders.evaluated_in_training,
    "orders.groups_in_loop": orders.groups_in_loop,
    "orders.trained_alone": orders.trained_alone,
    "orders.one_shard_unit": orders.one_shard_unit,
    "orders.spread_over_one": orders.spread_over_one,
    "learning.rate_ran_out": learning.rate_ran_out,
    "learning.rate_only_rises": learning.rate_only_rises,
    "learning.schedule_misses": learning.schedule_misses,
    "learning.steps_skipped": learning.steps_skipped,
    "learning.gets_no_gradient": learning.gets_no_gradient,
    "learning.accumulated_undivided": learning.accumulated_undivided,
    "learning.clipped_hard": learning.clipped_hard,
    "learning.rounded_away": learning.rounded_away,
    "learning.compressed_to_nothing": learning.compressed_to_nothing,
    "learning.foreign_gradients": learning.foreign_gradients,
    "learning.debugging_aids": learning.debugging_aids,
    "learning.too_many_threads": learning.too_many_threads,
    "feeding.fed_alike": feeding.fed_alike,
    "feeding.loaders_alike": feeding.loaders_alike,
    "feeding.rows_shared": feeding.rows_shared,
    "feeding.first_batch_only": feeding.first_batch_only,
    "feeding.workers_begin_anew": feeding.workers_begin_anew,
    "feeding.mostly_padding": feeding.mostly_padding,
    "feeding.never_combined": feeding.never_combined,
    "feeding.ran_out_apart": feeding.ran_out_apart,
    "feeding.padded_rows_counted": feeding.padded_rows_counted,
    "feeding.trained_on_held_out": feeding.trained_on_held_out,
    "feeding.order_repeats": feeding.order_repeats,
    "feeding.sampler_counts_wrongly": feeding.sampler_counts_wrongly,
    "feeding.workers_repeat": feeding.workers_repeat,
    "feeding.parts_of_a_model_fed_unlike": feeding.parts_of_a_model_fed_unlike,
    "replicas.gradients_alike": replicas.gradients_alike,
    "restoring.state_left_in_file": restoring.state_left_in_file,
    "restoring.older_than_last": restoring.older_than_last,
    "restoring.nothing_matched": restoring.nothing_matched,
    "restoring.own_tensors_loaded": restoring.own_tensors_loaded,
    "restoring.rate_scaled_again": restoring.rate_scaled_again,
    "restoring.unlike_in_one_file": restoring.unlike_in_one_file,
    "restoring.saved_by_one_of_several": restoring.saved_by_one_of_several,
    "restoring.restored_by_some": restoring.restored_by_some,
    "restoring.changed_while_saved": restoring.changed_while_saved,
    "restoring.saved_again_and_again": restoring.saved_again_and_again,
    "restoring.written_by_several": restoring.written_by_several,
    "sentinels.replicas_differ": sentinels.replicas_differ,
    "sentinels.loss_is_no_number": sentinels.loss_is_no_number,
    "sentinels.memory_grows": sentinels.memory_grows,
}
"""They compare ranks with each other, once every event has been judged."""

NODE_DETECTORS: dict[str, Detector] = {
    "network.loopback_name": network.loopback_name,
    "network.unlike_networks": network.unlike_networks,
    "network.leads_nowhere": network.leads_nowhere,
    "network.interface_absent": network.interface_absent,
    "network.prefix_matches_several": network.prefix_matches_several,
    "network.master_unusable": network.master_unusable,
    "network.master_resolves_differently": network.master_resolves_differently,
    "network.master_port_taken": network.master_port_taken,
    "network.family_mismatch": network.family_mismatch,
    "routes.mtu_differs": routes.mtu_differs,
    "routes.reverse_path": routes.reverse_path,
    "network.variables_disagree": network.variables_disagree,
    "network.address_twice": network.address_twice,
    "agreement.rank_numbers": agreement.rank_numbers,
    "agreement.launch_arguments": agreement.launch_arguments,
    "agreement.locked_memory": agreement.locked_memory,
    "agreement.open_files": agreement.open_files,
    "agreement.shared_memory": agreement.shared_memory,
    "agreement.versions_differ": agreement.versions_differ,
    "agreement.environment_differs": agreement.environment_differs,
    "agreement.left_from_a_trial": agreement.left_from_a_trial,
    "agreement.timeouts": agreement.timeouts,
    "agreement.sidecar": agreement.sidecar,
    "agreement.plugin_missing": agreement.plugin_missing,
    "adapters.device_filter": adapters.device_filter,
    "adapters.gid_index": adapters.gid_index,
    "adapters.port_down": adapters.port_down,
    "adapters.switched_off": adapters.switched_off,
    "adapters.partition_keys": adapters.partition_keys,
    "adapters.traffic_class": adapters.traffic_class,
    "adapters.redirected": adapters.redirected,
    "adapters.far_adapter": adapters.far_adapter,
    "reach.master_port_filtered": reach.master_port_filtered,
    "reach.data_ports_filtered": reach.data_ports_filtered,
    "reach.unreachable": reach.unreachable,
    "payload.large_packets_vanish": payload.large_packets_vanish,
    "payload.slow_path": payload.slow_path,
    "payload.packets_lost": payload.packets_lost,
}
"""They compare the nodes' network facts with each other. Beside logs they explain a failure of communication."""

FACT_DETECTORS: dict[str, Detector] = {
    "versions.unmet": versions.unmet,
    "versions.companion": versions.companion,
    "versions.torn": versions.torn,
    "versions.extension": versions.extension,
    "versions.cpu_build": versions.cpu_build,
    "versions.driver": versions.driver,
    "versions.architecture": versions.architecture,
    "versions.toolkit": versions.toolkit,
    "versions.compiler": versions.compiler,
    "versions.nccl": versions.nccl,
    "versions.copies": versions.copies,
    "versions.generations": versions.generations,
    "versions.python": versions.python,
    "versions.yanked": versions.yanked,
    "versions.behind": versions.behind,
    "environment.lookalike": environment.lookalike,
    "environment.leftover": environment.leftover,
    "environment.shadow": environment.shadow,
    "environment.elsewhere": environment.elsewhere,
    "environment.lock": environment.lock,
    "environment.misspelt": environment.misspelt,
    "environment.unknown": environment.unknown,
    "environment.renamed": environment.renamed,
    "environment.debugging": environment.debugging,
    "environment.value": environment.value,
    "environment.contradiction": environment.contradiction,
    "environment.interface": environment.interface,
    "environment.devices": environment.devices,
    "environment.cuda_home": environment.cuda_home,
    "environment.ranks_left": environment.ranks_left,
    "environment.threads": environment.threads,
    "skew.must": skew.must,
    "skew.variables": skew.variables,
    "skew.may": skew.may,
    "skew.clock": skew.clock,
    "hosts.shared_memory": hosts.shared_memory,
    "hosts.open_files": hosts.open_files,
    "hosts.locked_memory": hosts.locked_memory,
    "hosts.processes": hosts.processes,
    "hosts.container_memory": hosts.container_memory,
    "hosts.cores": hosts.cores,
    "hosts.disk": hosts.disk,
    "hosts.not_writable": hosts.not_writable,
    "hosts.rdma_port": hosts.rdma_port,
    "hosts.uncorrected": hosts.uncorrected,
    "hosts.remapping": hosts.remapping,
    "hosts.throttled": hosts.throttled,
    "hosts.nvlinks": hosts.nvlinks,
    "hosts.pcie_width": hosts.pcie_width,
    "hosts.xid": hosts.xid,
    "hosts.lost": hosts.lost,
    "hosts.occupied": hosts.occupied,
    "hosts.wrong_sums": hosts.wrong_sums,
    "hosts.slow_device": hosts.slow_device,
    "checkpoints.missing": checkpoints.missing,
    "checkpoints.damaged": checkpoints.damaged,
    "checkpoints.pointer": checkpoints.pointer,
    "checkpoints.unknown": checkpoints.unknown,
    "checkpoints.ranks": checkpoints.ranks,
    "checkpoints.degrees": checkpoints.degrees,
    "checkpoints.runs_code": checkpoints.runs_code,
    "checkpoints.small": checkpoints.small,
    "checkpoints.steps": checkpoints.steps,
}
"""They read facts alone: what `paramedic check` has probed and parsed before anything ran."""

SAID_OF_EACH_NODE = frozenset(
    ("agreement.locked_memory", "agreement.open_files", "agreement.shared_memory", "agreement.versions_differ",
     "agreement.environment_differs", "agreement.left_from_a_trial", "adapters.port_down", "network.interface_absent")
)  # fmt: skip
"""Where a node was probed as a whole, `FACT_DETECTORS` judge these, and know more."""

DETECTORS = EVENT_DETECTORS | RUN_DETECTORS | NODE_DETECTORS | FACT_DETECTORS


def detect(
    run: Run,
    knowledge: Knowledge,
    prefilter: Prefilter,
    failed: Failed | None = None,
    signatures: Signatures | None = None,
) -> list[Finding]:
    """Where `failed` is given, a detector that breaks is noted there, and all others are asked nevertheless. What
    `signatures` have heard of the Run by now need not be asked again."""
    rules = knowledge.rules.values()
    by_detector = {rule.detector: rule for rule in rules if rule.detector}
    found = match.match(run, signatures or Signatures(rules, prefilter))
    for name, detector in EVENT_DETECTORS.items():
        if name in by_detector:
            found += answer(by_detector[name], failed, detector, run, by_detector[name], tuple(found))
    found = match.most_specific(found)
    for name, detector in RUN_DETECTORS.items():
        if name in by_detector:
            found += answer(by_detector[name], failed, detector, run, by_detector[name], tuple(found))
    # Where the logs tell of another kind of failure, what is wrong with the network is only worth a warning.
    other = any(one.severity == "error" and one.stage != "communication" for one in found)
    of_nodes = detect_in_nodes(run, knowledge, failed=failed)
    return within_one_host(run, found) + [
        replace(one, severity="warning") if other and one.severity == "error" else one for one in of_nodes
    ]


def detect_in_nodes(
    run: Run, knowledge: Knowledge, left_out: Collection[str] = (), failed: Failed | None = None
) -> list[Finding]:
    """What the nodes' network facts alone show."""
    by_detector = {rule.detector: rule for rule in knowledge.rules.values() if rule.detector}
    found: list[Finding] = []
    for name, detector in NODE_DETECTORS.items() if nodes(run) else ():
        if name in by_detector and name not in left_out:
            found += answer(by_detector[name], failed, detector, run, by_detector[name], tuple(found))
    return found


def detect_facts(
    run: Run, knowledge: Knowledge, known_bugs: Sequence[Advisory] = (), failed: Failed | None = None
) -> list[Finding]:
    """Before the launch: what the facts say, once for all nodes that are alike in it."""
    by_detector = {rule.detector: rule for rule in knowledge.rules.values() if rule.detector}
    found = [
        one
        for name, detector in FACT_DETECTORS.items()
        if name in by_detector
        for one in answer(by_detector[name], failed, detector, run, by_detector[name], ())
    ]
    return list(alike([*found, *advisories.known(run, known_bugs)]))
