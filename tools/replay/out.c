/* SPDX-License-Identifier: Apache-2.0 */
/*
 * out.c - rows of results as lines, CSV or JSON.
 *
 * OWNS      whether a row of this JSON array was printed before.
 *
 * LOCKING   none: one thread prints.
 */
#include "tools/replay/out.h"

#include <stdbool.h>
#include <stdio.h>

static bool first;

double kv_row_rate(const struct kv_row *row)
{
	return row->asked ? (double)row->hits / (double)row->asked : 0;
}

void kv_out_begin(enum kv_format format)
{
	first = true;
	if (format == KV_FORMAT_CSV)
		printf("policy,blocks,requests,hits,blocks_asked,hit_rate\n");
	if (format == KV_FORMAT_JSON)
		printf("[");
}

void kv_out_row(enum kv_format format, const struct kv_row *row)
{
	static const char *const forms[] = {
		"policy=%s blocks=%u requests=%zu hits=%llu blocks_asked=%llu "
		"hit_rate=%.4f\n",
		"%s,%u,%zu,%llu,%llu,%.4f\n",
		"{\"policy\": \"%s\", \"blocks\": %u, \"requests\": %zu, "
		"\"hits\": %llu, \"blocks_asked\": %llu, \"hit_rate\": %.4f}",
	};

	if (format == KV_FORMAT_JSON)
		printf(first ? "\n" : ",\n");
	first = false;
	printf(forms[format], row->policy, row->blocks, row->requests,
	       (unsigned long long)row->hits, (unsigned long long)row->asked,
	       kv_row_rate(row));
	fflush(stdout);
}

void kv_out_end(enum kv_format format)
{
	if (format == KV_FORMAT_JSON)
		printf("\n]\n");
}
