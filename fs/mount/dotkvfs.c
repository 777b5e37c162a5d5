/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dotkvfs.c - the files below .kvfs, made when they are opened.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "fs/mount/node.h"
#include "fs/base/stats.h"
#include "fs/mount/dotkvfs.h"

static const char *yes(bool value)
{
	return value ? "1" : "0";
}

static char *config_text(struct kv_mount *mount)
{
	const struct kv_options *o = mount->options;
	_cleanup_(kv_freep) char *cache = kv_cache_describe(mount->cache);
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (f == NULL)
		return NULL;
	fprintf(f, "version=%s\n", KV_VERSION);
	fprintf(f, "store=%s\n", o->store);
	fprintf(f, "mountpoint=%s\n",
		o->mountpoint != NULL ? o->mountpoint : "none");
	fprintf(f, "control=%s\n", mount->control_path);
	fprintf(f, "allow_other=%s\nro=%s\n", yes(o->allow_other),
		yes(o->read_only));
	fprintf(f, "uid=%u\ngid=%u\numask=%03o\n", mount->uid, mount->gid,
		o->umask);
	fprintf(f, "fuse_max_write=%u\nfuse_max_readahead=%u\n",
		mount->max_write, mount->max_readahead);
	fputs(cache != NULL ? cache : "", f);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

int kv_dotkvfs_text(struct kv_mount *mount, uint64_t ino, char **ret_text)
{
	char *text;

	switch (ino) {
	case KV_NODE_CONFIG:
		text = config_text(mount);
		break;
	case KV_NODE_STATS:
		text = kv_stats_text(mount->cache);
		break;
	case KV_NODE_METRICS:
		text = kv_metrics_text(mount->cache, mount->control);
		break;
	default:
		return -ESTALE;
	}
	if (text == NULL)
		return -ENOMEM;
	*ret_text = text;
	return 0;
}
