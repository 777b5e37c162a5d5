#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dashboard.py - write dashboard.json beside this file (pip install grafana-foundation-sdk)."""
import os

from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

OF = 'instance=~"$instance"'
SOURCE = DataSourceRef(type_val="prometheus", uid="$source")


def rate(metric, labels="", by="instance"):
    return f"sum by ({by}) (rate({metric}{{{OF}{labels}}}[$__rate_interval]))"


def quantiles(metric, label):
    return [(f"{{{{{label}}}}} p{q}", f"histogram_quantile(0.{q}, {rate(f'{metric}_bucket', by=f'{label}, le')})")
            for q in (50, 99)]


# Rows of panels: title, unit, and queries with their legends.
ROWS = {
    "Hits": [
        ("Hit rate as engines see it", "percentunit",
         [("{{instance}}", f"{rate('kvfs_found_blocks_total')} / {rate('kvfs_asked_blocks_total')}")]),
        ("Blocks found by acquire", "ops", [("{{tier}}", rate("kvfs_hits_total", by="tier")),
                                            ("missed", rate("kvfs_misses_total", by="job"))]),
        ("Hit rate with more memory", "percentunit", [("{{dram}}", f"avg by (dram) (kvfs_estimated_hit_rate{{{OF}}})")]),
        ("Age of found blocks", "s", quantiles("kvfs_hit_age_seconds", "tier"))],
    "Tiers": [
        ("How full", "percentunit", [("{{instance}} {{tier}}", f"kvfs_bytes{{{OF}}} / (kvfs_capacity_bytes{{{OF}}} > 0)")]),
        ("Evicted blocks", "ops", [("{{tier}}", rate("kvfs_evictions_total", by="tier"))]),
        ("Age of evicted blocks", "s", quantiles("kvfs_evicted_age_seconds", "tier")),
        ("Uses of evicted blocks", "short", [
            ("{{tier}}", f"{rate('kvfs_evicted_uses_sum', by='tier')} / {rate('kvfs_evicted_uses_count', by='tier')}")])],
    "Time": [
        ("Requests", "s", quantiles("kvfs_request_seconds", "type")),
        ("SSD", "s", quantiles("kvfs_ssd_seconds", "op")),
        ("Bytes", "Bps", [(way, rate(f"kvfs_ssd_{way}_bytes_total")) for way in ("read", "written")]),
        ("Remote tier, time of a call", "s", [
            ("{{call}}", f"{rate('kvfs_remote_seconds_total', by='call')} / {rate('kvfs_remote_calls_total', by='call')}")])],
    "Health": [
        ("Degraded", "bool", [("{{instance}} SSD", f"kvfs_ssd_degraded{{{OF}}}"),
                              ("{{instance}} remote", f"1 - kvfs_remote_open{{{OF}}}")]),
        ("Failures", "ops", [(name, rate(f"kvfs_{name}_total")) for name in
                             ("corrupt_blocks", "io_errors", "dropped_saves", "remote_failed")]),
        ("Clients and leases", "short", [(name, f"kvfs_{name}{{{OF}}}") for name in ("connections", "leases", "pinned_blocks")]),
        ("Blocks not on SSD yet", "short", [("{{instance}}", f"kvfs_dirty_blocks{{{OF}}}")])],
}


def build():
    board = (dashboard.Dashboard("kvfs").uid("kvfs").tags(["kvfs"]).refresh("30s").time("now-6h", "now")
             .with_variable(dashboard.DatasourceVariable("source").type("prometheus"))
             .with_variable(dashboard.QueryVariable("instance").datasource(SOURCE).multi(True).include_all(True).all_value(".*")
                            .query("label_values(kvfs_build_info, instance)")))
    for title, panels in ROWS.items():
        board = board.with_row(dashboard.Row(title))
        for name, unit, queries in panels:
            panel = timeseries.Panel().title(name).unit(unit).min(0).span(6).height(7).datasource(SOURCE)
            for ref, (legend, query) in zip("ABCD", queries):
                panel = panel.with_target(prometheus.Dataquery().ref_id(ref).expr(query).legend_format(legend))
            board = board.with_panel(panel)
    return board.build()


if __name__ == "__main__":
    with open(os.path.join(os.path.dirname(os.path.realpath(__file__)), "dashboard.json"), "w") as file:
        file.write(JSONEncoder(sort_keys=True, indent=1).encode(build()) + "\n")
