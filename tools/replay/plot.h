/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plot.h - hit rate over capacity as an SVG picture.
 */
#ifndef KV_TOOLS_REPLAY_PLOT_H
#define KV_TOOLS_REPLAY_PLOT_H

#include <stddef.h>
#include <stdint.h>

struct kv_curve {
	const char *name;
	const double *rate; /* by capacity */
};

/* Capacities ascend.  Why the file cannot be written. */
int kv_plot(const char *path, const char *title, const uint32_t *capacities,
	    size_t n, const struct kv_curve *curves, size_t n_curves);

#endif
