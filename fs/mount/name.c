/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name.c - names that can be written.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include "fs/mount/name.h"

/* `.<key>.<suffix>` */
static int parse_temp(const char *text, struct kv_name *ret_name)
{
	char name[KV_NAME_MAX + 1];
	const char *dot = strchr(text + 1, '.');
	size_t len = dot != NULL ? (size_t)(dot - text - 1) : 0;

	if (len == 0 || len > KV_NAME_MAX || dot[1] == '\0')
		return -EINVAL;
	memcpy(name, text + 1, len);
	name[len] = '\0';
	ret_name->kind = KV_NAME_TEMP;
	return kv_key_parse(name, &ret_name->key);
}

int kv_name_parse(const char *text, int byte, struct kv_name *ret_name)
{
	struct kv_name name = {0};
	int r = 0;

	if (strlen(text) > 255)
		return -ENAMETOOLONG;
	if (byte < 0) {
		name.kind = KV_NAME_LAYOUT;
		if (strncmp(text, ".layout.", 8) == 0 && text[8] != '\0')
			name.kind = KV_NAME_LAYOUT_TEMP;
		else if (strcmp(text, ".layout") != 0)
			return -EINVAL;
	} else if (text[0] == '.') {
		r = parse_temp(text, &name);
	} else {
		name.kind = KV_NAME_KEY;
		r = kv_key_parse(text, &name.key);
	}
	if (r < 0)
		return r;
	if (byte >= 0 && name.key.b[0] != byte)
		return -EINVAL;
	*ret_name = name;
	return 0;
}
