/* SPDX-License-Identifier: Apache-2.0 */
/*
 * out.h - results, and the forms they are printed in.
 */
#ifndef KV_TOOLS_REPLAY_OUT_H
#define KV_TOOLS_REPLAY_OUT_H

#include <stdint.h>
#include <stdlib.h>

enum kv_format { KV_FORMAT_TEXT, KV_FORMAT_CSV, KV_FORMAT_JSON };

struct kv_row {
	const char *policy;
	uint32_t blocks;
	size_t requests;
	uint64_t hits, asked;
};

double kv_row_rate(const struct kv_row *row);
void kv_out_begin(enum kv_format format);
void kv_out_row(enum kv_format format, const struct kv_row *row);
void kv_out_end(enum kv_format format);

struct kv_curve {
	const char *name;
	const double *rate; /* by capacity */
};

/* Hit rate over capacity as an SVG picture; capacities ascend.  -errno: the
 * file cannot be written. */
int kv_plot(const char *path, const char *title, const uint32_t *capacities,
	    size_t n, const struct kv_curve *curves, size_t n_curves);

#endif
