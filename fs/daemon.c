/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.c - everything that belongs to one store that is served, put together
 * and taken apart in order; and the texts below .kvfs, which tell of all of it.
 *
 * OWNS      the cache, the control socket and the mount: its uploads, open
 *           handles, notifier, hidden layouts, lives of directories, parked
 *           requests, and who reads and changes spaces for them.
 *
 * INVARIANTS
 *   (1) The cache's callbacks reach the control socket only between
 *       kv_daemon_open and kv_daemon_close: it is taken away from them before
 *       it is stopped.
 *
 * LOCKING   daemon->lock guards `control` against the cache's callbacks, which
 *           read it for the time of a call that does not block.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "cache/core/account.h"
#include "common/bytes.h"
#include "fs/base/stats.h"
#include "fs/control/control.h"
#include "fs/daemon.h"
#include "fs/mount/node.h"
#include "fs/mount/notify.h"
#include "fs/mount/open.h"
#include "fs/mount/parked.h"

static void on_gone(void *arg, uint64_t id)
{
	struct kv_daemon *daemon = arg;

	kv_notify_gone(daemon->mount->notify, id);
}

/* By whichever way it was removed. */
static void on_space_gone(void *arg, uint32_t id)
{
	struct kv_daemon *daemon = arg;

	kv_lives_forget(daemon->mount->lives, id);
}

/* While it starts: standard error is still the user's. */
static void on_waiting(void *arg, long owner)
{
	struct kv_daemon *daemon = arg;

	fprintf(stderr,
		"kvfs: %s: its daemon (pid %ld) is still ending, waiting for "
		"it\n",
		daemon->options->store, owner);
}

static void on_warn(void *arg, const char *line)
{
	(void)arg;
	fprintf(stderr, "kvfs: warning: %s\n", line);
}

#define REQUESTS_PART 4u
#define REQUESTS_MIN ((uint64_t)16 << 20)

/* Memory that the daemon needs besides counts in the same group. */
static void warn_of_limit(struct kv_daemon *daemon)
{
	const struct kv_options *o = daemon->options;
	_cleanup_(kv_freep) char *line = NULL;

	if (o->cache.dram <= o->memory.bytes / 4 * 3 ||
	    o->memory.bytes == UINT64_MAX)
		return;
	if (asprintf(&line,
		     "dram: %lluM of the %lluM that the control group may have "
		     "(%s) leaves little for the daemon itself, which the "
		     "kernel kills beyond",
		     (unsigned long long)(o->cache.dram >> 20),
		     (unsigned long long)(o->memory.bytes >> 20),
		     o->memory.file) >= 0)
		on_warn(daemon, line);
}

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

/* ---- what the handlers of the mount share ---- */

static void mount_free(struct kv_mount *mount)
{
	if (!mount)
		return;
	kv_lives_free(mount->lives);
	pthread_mutex_destroy(&mount->hidden.lock);
	kv_notify_free(mount->notify);
	kv_parking_free(mount->parking);
	free(mount);
}

/* A mount that hears of blocks that go and of room, from the cache that is yet to
 * be opened, and does nothing more. */
static int mount_new(struct kv_mount **ret_mount)
{
	struct kv_mount *mount = calloc(1, sizeof(*mount));
	int r;

	if (!mount)
		return -ENOMEM;
	pthread_mutex_init(&mount->hidden.lock, NULL);
	mount->started_ns = kv_wall_ns();
	r = kv_notify_new(mount, &mount->notify);
	if (r == 0)
		r = kv_parking_new(&mount->parking);
	if (r < 0) {
		mount_free(mount);
		return r;
	}
	*ret_mount = mount;
	return 0;
}

/* Ready for requests. */
static int mount_start(struct kv_mount *mount, struct kv_cache *cache)
{
	int r;

	mount->cache = cache;
	r = kv_uploads_new(cache, &mount->uploads);
	if (r == 0)
		r = kv_lives_new(&mount->lives);
	if (r == 0)
		r = kv_handles_new(&mount->handles);
	return r;
}

/* Give back to the cache what is open still; NULL, or one not started: none. */
static void mount_stop(struct kv_mount *mount)
{
	if (!mount)
		return;
	kv_parking_stop(mount->parking);
	kv_parking_join(mount->parking);
	kv_handles_free(mount);
	kv_uploads_free(kv_steal(mount->uploads));
}

/* ---- the files below .kvfs ---- */

static void write_memory(FILE *f, const struct kv_cgroup_limit *limit)
{
	FILE *score = fopen("/proc/self/oom_score_adj", "re");
	int value;

	if (limit->bytes == UINT64_MAX)
		fputs("memory_limit=none\n", f);
	else
		fprintf(f, "memory_limit=%llu (%s)\n",
			(unsigned long long)limit->bytes, limit->file);
	if (score && fscanf(score, "%d", &value) == 1)
		fprintf(f, "oom_score_adj=%d%s\n", value,
			value == 0 ? " (without CAP_SYS_RESOURCE it cannot be "
				     "lower)"
				   : "");
	if (score)
		fclose(score);
}

static char *config_text(struct kv_daemon *daemon)
{
	const struct kv_options *o = daemon->options;
	const struct kv_mount *mount = daemon->mount;
	_cleanup_(kv_freep) char *cache = kv_cache_describe(daemon->cache);
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	fprintf(f, "version=%s\n", KV_VERSION);
	fprintf(f, "store=%s\n", o->store);
	fprintf(f, "mountpoint=%s\n", o->mountpoint ? o->mountpoint : "none");
	fprintf(f, "control=%s\n", daemon->control_path);
	kv_options_print(f, o);
	fprintf(f, "fuse_max_write=%u\nfuse_max_readahead=%u\n",
		mount->max_write, mount->max_readahead);
	write_memory(f, &o->memory);
	fputs(cache ? cache : "", f);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

static char *metrics_text(struct kv_daemon *daemon,
			  const struct kv_caller *reader)
{
	struct kv_control_counts counts = {0};

	pthread_rwlock_rdlock(&daemon->lock);
	if (daemon->control)
		kv_control_counts(daemon->control, &counts);
	pthread_rwlock_unlock(&daemon->lock);
	return kv_metrics_text(daemon->cache, &counts, &daemon->options->rules,
			       reader);
}

static int text_of(void *arg, uint64_t ino, const struct kv_caller *reader,
		   char **ret_text)
{
	const struct kv_node node = kv_node_decode(ino);
	struct kv_daemon *daemon = arg;
	char *text;

	if (node.type == KV_NODE_TENANT) {
		*ret_text = kv_tenant_text(daemon->cache, (uint32_t)node.value);
		return *ret_text ? 0 : -ENOMEM;
	}
	switch (ino) {
	case KV_NODE_CONFIG:
		text = config_text(daemon);
		break;
	case KV_NODE_STATS:
		text = kv_stats_text(daemon->cache);
		break;
	case KV_NODE_METRICS:
		text = metrics_text(daemon, reader);
		break;
	default:
		return -ESTALE;
	}
	if (!text)
		return -ENOMEM;
	*ret_text = text;
	return 0;
}

/* ---- beginning and end ---- */

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

/* The default socket lies in a directory of its own, and that in one which all
 * daemons of a user share, and which stays. */
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
		return 0; /* it is there, or the socket says why not */
	/* Whatever the umask is: other users connect, too. */
	return chmod(base, 0755) < 0 ? -errno : 0;
}

/* A user without a place for the socket did not choose one. */
static int explain_place(const struct kv_daemon *daemon, int r, char **ret_why)
{
	char *why;

	if (daemon->options->control || geteuid() == 0 || !*ret_why ||
	    getenv("XDG_RUNTIME_DIR"))
		return r;
	if (asprintf(&why, "%s (XDG_RUNTIME_DIR is not set: give control=PATH)",
		     *ret_why) < 0)
		return r;
	free(*ret_why);
	*ret_why = why;
	return r;
}

/* In an order in which nothing needs what comes later. */
static int start(struct kv_daemon *daemon, struct kv_gate *gate, char **ret_why)
{
	const struct kv_options *o = daemon->options;
	struct kv_cache_config config = o->cache;
	struct kv_control *control;
	int r;

	config.gone = on_gone;
	config.space_gone = on_space_gone;
	config.retire = on_retire;
	config.room = on_room;
	config.waiting = on_waiting;
	config.warn = on_warn;
	config.arg = daemon;
	warn_of_limit(daemon);
	r = mount_new(&daemon->mount);
	if (r < 0)
		return r;
	r = kv_cache_open(&config, &daemon->cache, ret_why);
	if (r < 0)
		return r;
	daemon->control_path = control_path(daemon);
	if (!daemon->control_path)
		return -ENOMEM;
	daemon->mount->control_path = daemon->control_path;
	daemon->mount->rules = &o->rules;
	/* The rest of the control group's memory is also for the daemon's own
	 * tables and the kernel's socket buffers. */
	if (o->memory.bytes != UINT64_MAX)
		kv_accounts_limit_memory(
			kv_cache_accounts(daemon->cache),
			KV_MAX((o->memory.bytes - o->cache.dram) /
				       REQUESTS_PART,
			       REQUESTS_MIN));
	if (o->rules.squash)
		kv_accounts_squash_root(kv_cache_accounts(daemon->cache));
	daemon->mount->umask = o->umask;
	daemon->mount->text = text_of;
	daemon->mount->arg = daemon;
	r = mount_start(daemon->mount, daemon->cache);
	if (r < 0)
		return r;
	r = make_socket_base(daemon);
	if (r < 0)
		return r;
	r = kv_control_start(daemon->cache, &o->rules, gate,
			     daemon->control_path, &control, ret_why);
	if (r == 0)
		set_control(daemon, control);
	return r < 0 ? explain_place(daemon, r, ret_why) : 0;
}

int kv_daemon_open(const struct kv_options *options, struct kv_gate *gate,
		   struct kv_daemon **ret_daemon, char **ret_why)
{
	struct kv_daemon *daemon = calloc(1, sizeof(*daemon));
	int r;

	*ret_why = NULL;
	if (!daemon)
		return -ENOMEM;
	daemon->options = options;
	pthread_rwlock_init(&daemon->lock, NULL);
	r = start(daemon, gate, ret_why);
	if (r < 0) {
		kv_daemon_close(daemon);
		return r;
	}
	*ret_daemon = daemon;
	return 0;
}

/* Also if one that was killed had made it. */
static void remove_socket_dir(struct kv_daemon *daemon)
{
	char *slash = strrchr(daemon->control_path, '/');

	if (daemon->options->control || !slash)
		return;
	*slash = '\0';
	(void)rmdir(daemon->control_path);
}

void kv_daemon_close(struct kv_daemon *daemon)
{
	struct kv_control *control;

	if (!daemon)
		return;
	if (daemon->cache)
		kv_cache_ending(daemon->cache);
	control = set_control(daemon, NULL);
	kv_control_stop(control);
	if (control)
		remove_socket_dir(daemon);
	mount_stop(daemon->mount);
	if (daemon->cache && kv_cache_close(daemon->cache) < 0) {
		fprintf(stderr, "kvfs: the SSD does not answer: the store is "
				"left as after a crash\n");
		return; /* requests that end after all may still call back */
	}
	mount_free(daemon->mount);
	free(daemon->control_path);
	pthread_rwlock_destroy(&daemon->lock);
	free(daemon);
}
