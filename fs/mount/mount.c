/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.c - what the handlers of one mount share, put together and taken apart.
 *
 * OWNS      the uploads, the open handles, the notifier, the layouts that are
 *           hidden, the lives of directories, parked requests and who reads for
 *           them.
 *
 * LOCKING   none: before the first request and after the last.
 */
#include "fs/mount/hidden.h"
#include "fs/mount/mount.h"
#include "fs/mount/node.h"
#include "fs/mount/notify.h"
#include "fs/mount/open.h"
#include "fs/mount/parked.h"
#include "fs/mount/readers.h"

int kv_mount_new(struct kv_mount **ret_mount)
{
	struct kv_mount *mount = calloc(1, sizeof(*mount));
	int r;

	if (!mount)
		return -ENOMEM;
	mount->started_ns = kv_wall_ns();
	r = kv_notify_new(mount, &mount->notify);
	if (r < 0) {
		free(mount);
		return r;
	}
	*ret_mount = mount;
	return 0;
}

int kv_mount_start(struct kv_mount *mount, struct kv_cache *cache)
{
	int r;

	mount->cache = cache;
	r = kv_uploads_new(cache, &mount->uploads);
	if (r == 0)
		r = kv_lives_new(&mount->lives);
	if (r == 0)
		r = kv_hidden_new(&mount->hidden);
	if (r == 0)
		r = kv_handles_new(&mount->handles);
	if (r == 0)
		r = kv_parking_new(&mount->parking);
	if (r == 0)
		r = kv_readers_new(mount, &mount->readers);
	return r;
}

void kv_mount_stop(struct kv_mount *mount)
{
	if (!mount)
		return;
	kv_parking_stop(mount->parking);
	kv_readers_free(kv_steal(mount->readers));
	kv_handles_free(mount);
	kv_uploads_free(kv_steal(mount->uploads));
}

void kv_mount_free(struct kv_mount *mount)
{
	if (!mount)
		return;
	kv_lives_free(mount->lives);
	kv_hidden_free(mount->hidden);
	kv_notify_free(mount->notify);
	kv_parking_free(mount->parking);
	free(mount);
}
