/* SPDX-License-Identifier: Apache-2.0 */
/*
 * out.h - a row of results, and the forms it is printed in.
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

#endif
