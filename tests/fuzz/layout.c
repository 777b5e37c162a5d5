/* SPDX-License-Identifier: Apache-2.0 */
/* A space's `.layout`: a text that is accepted has a canonical form with the same
 * meaning. */
#include "common/layout.h"
#include "tests/fuzz/fuzz.h"

/* Input: two texts, separated by a newline; the second is written over the first. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	_cleanup_(kv_layout_freep) struct kv_layout *again = NULL;
	struct fuzz f = {data, size};
	_cleanup_(kv_freep) char *first = fuzz_line(&f);

	if (kv_layout_parse(first, strlen(first), &layout) < 0)
		return 0;
	fuzz_must(layout->payload > 0 && layout->n_tensors > 0);
	fuzz_must(kv_layout_parse(layout->json, strlen(layout->json), &again) ==
		  0);
	fuzz_must(strcmp(layout->json, again->json) == 0);
	fuzz_must(layout->payload == again->payload);
	fuzz_must(kv_layout_agrees(layout, layout->json,
				   strlen(layout->json)) == 1);
	fuzz_must(kv_layout_agrees(layout, first, strlen(first)) == 1);
	kv_layout_agrees(layout, (const char *)f.at, f.left);
	return 0;
}
