/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files in the mount: a key has exactly one name. */
#include "fs/mount/mount.h"
#include "tests/fuzz/fuzz.h"

static void check_key(const char *text)
{
	char name[KV_NAME_MAX + 1];
	struct kv_key key;

	if (kv_key_parse(text, &key) < 0)
		return;
	kv_key_name(&key, name);
	fuzz_must(strcmp(name, text) == 0);
}

/* Input: a byte for the kind of directory, then the name of an entry. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {data, size};
	int byte = fuzz_byte(&f);
	_cleanup_(kv_freep) char *text = fuzz_line(&f);
	char shown[KV_NAME_MAX + 1];
	struct kv_name name;

	check_key(text);
	if (kv_name_parse(text, -1, &name) == 0)
		fuzz_must(name.key.len == 0 &&
			  strncmp(text, ".layout", 7) == 0);
	if (kv_name_parse(text, byte, &name) < 0)
		return 0;
	fuzz_must(name.key.b[0] == byte);
	kv_key_name(&name.key, shown);
	fuzz_must(strstr(text, shown) == text + (name.kind == KV_NAME_TEMP));
	return 0;
}
