/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.c - open and close, in order, all parts of a daemon that serves a store; and
 * the texts of the files below .kvfs.
 *
 * OWNS      the cache, the control socket and the mount with its uploads, open
 *           handles, notifier and parked requests.
 *
 * INVARIANTS
 *   (1) The cache's callbacks reach the control socket only between kv_daemon_open
 *       and kv_daemon_close: `control` is set to NULL before the socket is stopped.
 *
 * LOCKING   daemon->lock guards `control`.  The cache's callbacks hold it for reading
 *           during a call that does not block.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "cache/core/account.h"
#include "common/bytes.h"
#include "fs/base/stats.h"
#include "fs/control/control.h"
#include "fs/daemon.h"
#include "fs/mount/mount.h"

static void on_gone(void *arg, uint64_t id)
{
	struct kv_daemon *daemon = arg;

	kv_notify_node(daemon->mount, kv_node_of(KV_NODE_BLOCK, id));
}

/* Report that the store's previous daemon, process @owner, has not ended yet.
 * Standard error is still the user's during the start. */
static void on_waiting(void *arg, long owner)
{
	struct kv_daemon *daemon = arg;

	fprintf(stderr,
		"kvfs: %s: waiting for the store's previous daemon (pid %ld) "
		"to end\n",
		daemon->options->store, owner);
}

static void on_warn(void *arg, const char *line)
{
	(void)arg;
	fprintf(stderr, "kvfs: warning: %s\n", line);
}

#define REQUESTS_PART 4u
#define REQUESTS_MIN ((uint64_t)16 << 20)

static void on_room(void *arg)
{
	struct kv_daemon *daemon = arg;

	kv_parking_room(daemon->mount->parking);
}

static void on_retire(void *arg, uint32_t id)
{
	struct kv_daemon *daemon = arg;

	pthread_rwlock_rdlock(&daemon->lock);
	kv_control_retire(daemon->control, id);
	pthread_rwlock_unlock(&daemon->lock);
}

static struct kv_control *set_control(struct kv_daemon *daemon,
				      struct kv_control *control)
{
	struct kv_control *before;

	pthread_rwlock_wrlock(&daemon->lock);
	before = daemon->control;
	daemon->control = control;
	pthread_rwlock_unlock(&daemon->lock);
	return before;
}

/* ---- the files below .kvfs ---- */

static char *config_text(void *arg)
{
	const struct kv_daemon *daemon = arg;
	const struct kv_options *o = daemon->options;
	const struct kv_mount *mount = daemon->mount;
	_cleanup_(kv_freep) char *cache = kv_cache_describe(daemon->cache);
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n), *score;
	int value;

	if (!f)
		return NULL;
	fprintf(f, "version=%s\n", KV_VERSION);
	fprintf(f, "store=%s\n", o->store);
	fprintf(f, "mountpoint=%s\n", o->mountpoint ? o->mountpoint : "none");
	fprintf(f, "control=%s\n", daemon->control_path);
	kv_options_print(f, o);
	fprintf(f, "fuse_max_write=%u\nfuse_max_readahead=%u\n",
		mount->max_write, mount->max_readahead);
	if (o->memory.bytes == UINT64_MAX)
		fputs("memory_limit=none\n", f);
	else
		fprintf(f, "memory_limit=%llu (%s)\n",
			(unsigned long long)o->memory.bytes, o->memory.file);
	score = fopen("/proc/self/oom_score_adj", "re");
	if (score && fscanf(score, "%d", &value) == 1)
		fprintf(f, "oom_score_adj=%d%s\n", value,
			value == 0 ? " (without CAP_SYS_RESOURCE it cannot be "
				     "lower)"
				   : "");
	if (score)
		fclose(score);
	kv_warden_describe(daemon->warden, f);
	fputs(cache ? cache : "", f);
	return kv_text_close(f, &text);
}

static int text_of(void *arg, uint64_t ino, const struct kv_caller *reader,
		   char **ret_text)
{
	const struct kv_node node = kv_node_decode(ino);
	struct kv_control_counts counts = {0};
	struct kv_daemon *daemon = arg;
	char *text;

	switch (node.type == KV_NODE_TENANT ? KV_NODE_TENANTS : ino) {
	case KV_NODE_TENANTS:
		text = kv_tenant_text(daemon->cache, (uint32_t)node.value);
		break;
	case KV_NODE_CONFIG:
		text = config_text(daemon);
		break;
	case KV_NODE_STATS:
		text = kv_stats_text(daemon->cache);
		break;
	case KV_NODE_METRICS:
		pthread_rwlock_rdlock(&daemon->lock);
		if (daemon->control)
			kv_control_counts(daemon->control, &counts);
		pthread_rwlock_unlock(&daemon->lock);
		text = kv_metrics_text(daemon->cache, &counts,
				       &daemon->options->rules, reader);
		break;
	default:
		return -ESTALE;
	}
	if (!text)
		return -ENOMEM;
	*ret_text = text;
	return 0;
}

/* ---- opening and closing a daemon ---- */

static char *control_path(const struct kv_daemon *daemon)
{
	const uint8_t *id = kv_cache_store_id(daemon->cache);
	const char *base = getenv("XDG_RUNTIME_DIR");
	char hex[33], fallback[64], *path;

	if (daemon->options->control)
		return strdup(daemon->options->control);
	kv_hex(id, 16, hex);
	if (geteuid() == 0) {
		base = "/run";
	} else if (!base || base[0] != '/') {
		snprintf(fallback, sizeof(fallback), "/run/user/%u", geteuid());
		base = fallback;
	}
	return asprintf(&path, "%s/kvfs/%s/control", base, hex) < 0 ? NULL
								    : path;
}

/* Make the directory that holds the default socket's directory.  All daemons of a user
 * share it, and it is never removed. */
static int make_socket_base(const struct kv_daemon *daemon)
{
	_cleanup_(kv_freep) char *base = NULL;

	if (daemon->options->control)
		return 0;
	base = strdup(daemon->control_path);
	if (!base)
		return -ENOMEM;
	*strrchr(base, '/') = '\0';
	*strrchr(base, '/') = '\0';
	if (mkdir(base, 0755) < 0)
		/* EEXIST is no error, and the socket will report others */
		return 0;
	/* Let other users connect in spite of the umask. */
	return chmod(base, 0755) < 0 ? -errno : 0;
}

static void daemon_closep(struct kv_daemon **daemon)
{
	kv_daemon_close(*daemon);
}

int kv_daemon_open(const struct kv_options *options, struct kv_warden *warden,
		   struct kv_gate *gate, struct kv_daemon **ret_daemon,
		   char **ret_why)
{
	_cleanup_(daemon_closep) struct kv_daemon *daemon =
		calloc(1, sizeof(*daemon));
	struct kv_cache_config config = options->cache;
	struct kv_control *control;
	struct kv_mount *mount;
	char *why;
	int r;

	*ret_why = NULL;
	if (!daemon)
		return -ENOMEM;
	daemon->options = options;
	daemon->warden = warden;
	pthread_rwlock_init(&daemon->lock, NULL);
	config.gone = on_gone;
	config.retire = on_retire;
	config.room = on_room;
	config.waiting = on_waiting;
	config.warn = on_warn;
	config.arg = daemon;
	/* Warn: the daemon needs memory besides dram=, and beyond the limit the
	 * kernel kills the daemon. */
	if (options->memory.bytes != UINT64_MAX &&
	    options->cache.dram > options->memory.bytes / 4 * 3)
		fprintf(stderr,
			"kvfs: warning: dram: %lluM of the %lluM that the "
			"control group may have (%s) leaves little for the "
			"daemon itself; give less, as the kernel kills a "
			"daemon above the limit\n",
			(unsigned long long)(options->cache.dram >> 20),
			(unsigned long long)(options->memory.bytes >> 20),
			options->memory.file);
	/* The cache's callbacks use the mount's notices and parked requests. */
	mount = daemon->mount = calloc(1, sizeof(*mount));
	if (!mount)
		return -ENOMEM;
	pthread_mutex_init(&mount->lock, NULL);
	mount->started_ns = kv_wall_ns();
	r = kv_parking_new(&mount->parking);
	if (r < 0)
		return r;
	r = kv_cache_open(&config, &daemon->cache, ret_why);
	if (r < 0)
		return r;
	daemon->control_path = control_path(daemon);
	if (!daemon->control_path)
		return -ENOMEM;
	mount->control_path = daemon->control_path;
	mount->rules = &options->rules;
	/* The daemon's tables and the kernel's socket buffers also need a part of
	 * the control group's memory. */
	kv_accounts_set(
		kv_cache_accounts(daemon->cache), options->rules.squash,
		options->memory.bytes == UINT64_MAX
			? UINT64_MAX
			: KV_MAX((options->memory.bytes - options->cache.dram) /
					 REQUESTS_PART,
				 REQUESTS_MIN));
	mount->umask = options->umask;
	mount->text = text_of;
	mount->arg = daemon;
	mount->cache = daemon->cache;
	r = kv_uploads_new(daemon->cache, &mount->uploads);
	if (r == 0)
		r = make_socket_base(daemon);
	if (r < 0)
		return r;
	r = kv_control_start(daemon->cache, &options->rules, gate,
			     daemon->control_path, config_text, daemon,
			     &control, ret_why);
	/* Suggest in the error message to choose the socket's path. */
	if (r < 0 && !options->control && geteuid() != 0 && *ret_why &&
	    !getenv("XDG_RUNTIME_DIR") &&
	    asprintf(&why, "%s (XDG_RUNTIME_DIR is not set: give control=PATH)",
		     *ret_why) >= 0) {
		free(*ret_why);
		*ret_why = why;
	}
	if (r < 0)
		return r;
	if (options->closed)
		fprintf(stderr,
			"kvfs: %s: only root may use it; to admit others, "
			"mount with allow=UID:... or mkdir=all\n",
			options->mountpoint ? options->mountpoint
					    : options->store);
	set_control(daemon, control);
	*ret_daemon = kv_steal(daemon);
	return 0;
}

void kv_daemon_close(struct kv_daemon *daemon)
{
	struct kv_mount *mount = daemon ? daemon->mount : NULL;
	struct kv_control *control;
	char *slash;

	if (!daemon)
		return;
	if (daemon->cache)
		kv_cache_ending(daemon->cache);
	control = set_control(daemon, NULL);
	kv_control_stop(control);
	slash = control && !daemon->options->control
			? strrchr(daemon->control_path, '/')
			: NULL;
	if (slash) { /* remove the directory of the socket */
		*slash = '\0';
		(void)rmdir(daemon->control_path);
	}
	if (mount) {
		/* Release the blocks of files that are still open. */
		kv_parking_stop(mount->parking);
		kv_parking_join(mount->parking);
		kv_handles_free(mount);
		kv_uploads_free(kv_steal(mount->uploads));
	}
	if (daemon->cache && kv_cache_close(daemon->cache) < 0) {
		fprintf(stderr, "kvfs: the SSD does not answer: the store is "
				"not closed cleanly\n");
		return; /* a stuck SSD request may still use this memory */
	}
	if (mount) {
		pthread_mutex_destroy(&mount->lock);
		kv_parking_free(mount->parking);
		free(mount);
	}
	free(daemon->control_path);
	pthread_rwlock_destroy(&daemon->lock);
	free(daemon);
}
