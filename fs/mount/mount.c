/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.c - everything that belongs to one mounted store, put together and
 * taken apart in order.
 *
 * OWNS      the cache, the control socket, the uploads and the open handles.
 *
 * INVARIANTS
 *   (1) The cache's callbacks reach the control socket and the notifier only
 *       between kv_mount_open or kv_mount_listen and their ends: both are
 *       taken off the listeners before they are stopped.
 *
 * LOCKING   listeners guards control and notify against the cache's callbacks,
 *           which read it for the time of a call that does not block.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "fs/control/control.h"
#include "fs/mount/hidden.h"
#include "fs/mount/open.h"
#include "fs/mount/mount.h"
#include "fs/mount/node.h"
#include "fs/mount/notify.h"

static void on_gone(void *arg, uint64_t id)
{
	struct kv_mount *mount = arg;

	pthread_rwlock_rdlock(&mount->listeners);
	if (mount->notify != NULL)
		kv_notify_gone(mount->notify, id);
	pthread_rwlock_unlock(&mount->listeners);
}

static void on_retire(void *arg, uint32_t id)
{
	struct kv_mount *mount = arg;

	pthread_rwlock_rdlock(&mount->listeners);
	kv_control_retire(mount->control, id);
	pthread_rwlock_unlock(&mount->listeners);
}

void kv_mount_listen(struct kv_mount *mount, struct kv_notify *notify)
{
	pthread_rwlock_wrlock(&mount->listeners);
	mount->notify = notify;
	pthread_rwlock_unlock(&mount->listeners);
}

void kv_mount_changed(struct kv_mount *mount, struct kv_space *space)
{
	pthread_rwlock_rdlock(&mount->listeners);
	if (mount->notify != NULL)
		kv_notify_space(mount->notify, space);
	pthread_rwlock_unlock(&mount->listeners);
}

static char *control_path(const struct kv_mount *mount)
{
	const uint8_t *id = kv_cache_store_id(mount->cache);
	const char *base = getenv("XDG_RUNTIME_DIR");
	char hex[33], fallback[64], *path;

	if (mount->options->control != NULL)
		return strdup(mount->options->control);
	for (size_t i = 0; i < 16; i++)
		sprintf(hex + 2 * i, "%02x", id[i]);
	if (geteuid() == 0) {
		base = "/run";
	} else if (base == NULL || base[0] != '/') {
		snprintf(fallback, sizeof(fallback), "/run/user/%u", geteuid());
		base = fallback;
	}
	return asprintf(&path, "%s/kvfs/%s/control", base, hex) < 0 ? NULL
								    : path;
}

static void set_root(struct kv_mount *mount)
{
	const struct kv_options *o = mount->options;

	mount->uid = o->uid;
	mount->gid = o->gid;
	mount->mode = geteuid() == 0 ? 01777 : 0755;
	mount->started_ns = kv_wall_ns();
}

/* In an order in which nothing needs what comes later. */
static int start(struct kv_mount *mount, char **ret_why)
{
	struct kv_cache_config config = kv_options_cache(mount->options);
	struct kv_control *control;
	int r;

	config.gone = on_gone;
	config.retire = on_retire;
	config.arg = mount;
	r = kv_cache_open(&config, &mount->cache, ret_why);
	if (r < 0)
		return r;
	r = kv_uploads_new(mount->cache, &mount->uploads);
	if (r < 0)
		return r;
	r = kv_lives_new(&mount->lives);
	if (r == 0)
		r = kv_hidden_new(&mount->hidden);
	if (r < 0)
		return r;
	mount->handles = calloc(1, sizeof(*mount->handles));
	mount->control_path = control_path(mount);
	if (mount->handles == NULL || mount->control_path == NULL)
		return -ENOMEM;
	pthread_mutex_init(&mount->handles->lock, NULL);
	r = kv_control_start(mount->cache, mount->control_path, &control,
			     ret_why);
	if (r < 0)
		return r;
	pthread_rwlock_wrlock(&mount->listeners);
	mount->control = control;
	pthread_rwlock_unlock(&mount->listeners);
	return 0;
}

int kv_mount_open(const struct kv_options *options, struct kv_mount **ret_mount,
		  char **ret_why)
{
	struct kv_mount *mount = calloc(1, sizeof(*mount));
	int r;

	*ret_why = NULL;
	if (mount == NULL)
		return -ENOMEM;
	mount->options = options;
	pthread_rwlock_init(&mount->listeners, NULL);
	set_root(mount);
	r = start(mount, ret_why);
	if (r < 0) {
		kv_mount_close(mount);
		return r;
	}
	*ret_mount = mount;
	return 0;
}

/* The default socket lies in a directory of its own. */
static void remove_socket_dir(struct kv_mount *mount)
{
	char *slash = strrchr(mount->control_path, '/');

	if (mount->options->control != NULL || slash == NULL)
		return;
	*slash = '\0';
	(void)rmdir(mount->control_path);
}

void kv_mount_close(struct kv_mount *mount)
{
	struct kv_control *control;

	if (mount == NULL)
		return;
	pthread_rwlock_wrlock(&mount->listeners);
	control = mount->control;
	mount->control = NULL;
	mount->notify = NULL;
	pthread_rwlock_unlock(&mount->listeners);
	kv_control_stop(control);
	if (control != NULL)
		remove_socket_dir(mount);
	if (mount->handles != NULL) {
		kv_handles_free_all(mount);
		pthread_mutex_destroy(&mount->handles->lock);
		free(mount->handles);
	}
	kv_uploads_free(mount->uploads);
	if (mount->cache != NULL && kv_cache_close(mount->cache) < 0) {
		fprintf(stderr, "kvfs: the SSD does not answer: the store is "
				"left as after a crash\n");
		return; /* requests that end after all may still call back */
	}
	kv_lives_free(mount->lives);
	kv_hidden_free(mount->hidden);
	free(mount->control_path);
	pthread_rwlock_destroy(&mount->listeners);
	free(mount);
}
