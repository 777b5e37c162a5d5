/* SPDX-License-Identifier: Apache-2.0 */
/* The first page of an SSD slot, as a disk may return it. */
#include "index/index.h"
#include "tests/fuzz/fuzz.h"

static const uint8_t store[16] = "0123456789abcde";

/* Check that every change of the bytes covered by the checksum is detected. */
static void check_sealed(struct kv_prologue *prologue, size_t at, uint8_t flip)
{
	uint8_t *bytes = (uint8_t *)prologue;

	kv_prologue_seal(prologue, store);
	fuzz_must(kv_prologue_check(prologue, store) == 0);
	bytes[at % sizeof(*prologue)] ^= flip;
	fuzz_must(kv_prologue_check(prologue, store) == (flip ? -EBADMSG : 0));
}

/* Input: the bits to flip in the sealed form, then the prologue. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {data, size};
	struct kv_prologue prologue = {0};
	uint32_t at = fuzz_u16(&f);
	uint8_t flip = fuzz_byte(&f);

	memcpy(&prologue, f.at, KV_MIN(f.left, sizeof(prologue)));
	if (kv_prologue_check(&prologue, store) == 0)
		fuzz_must(prologue.magic == KV_PROLOGUE_MAGIC);
	check_sealed(&prologue, at, flip);
	return 0;
}
