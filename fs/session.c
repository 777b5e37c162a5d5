/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - one FUSE session, from mount(2) to unmount.
 *
 * OWNS      the session, and the thread that waits for the first
 *           answer and then for signals (the signal thread).
 *
 * INVARIANTS
 *   (1) The notifier is stopped while requests are still being answered, or
 *       after the mount is gone: it may be waiting for a lock that only an
 *       answer frees.
 *   (2) The signal thread ends before the session is destroyed.
 *
 * LOCKING   none; flags are atomic.
 */
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "common/thread.h"
#include "common/bytes.h"
#include "fs/mount/notify.h"
#include "fs/mount/ops.h"
#include "fs/mount/parked.h"
#include "fs/mount/requests.h"
#include "fs/session.h"
#include "fs/mountpoint.h"

#define READAHEAD (1u << 20)

struct session {
	struct kv_daemon *daemon;
	const char *path;
	void (*ready)(void *arg);
	void *arg;
	struct fuse_session *fuse;
	struct kv_requests *requests;
	pthread_t signals;
	_Atomic bool ended;	 /* requests are read no more */
	_Atomic bool unanswered; /* the mount did not answer */
};

/* libfuse says why it fails; one line of that is ours to show. */
static char last_words[256];

static void listen_to_libfuse(enum fuse_log_level level, const char *format,
			      va_list args)
{
	if (level <= FUSE_LOG_ERR)
		vsnprintf(last_words, sizeof(last_words), format, args);
}

static sigset_t ending_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	return set;
}

void kv_session_block_signals(void)
{
	sigset_t set = ending_signals();

	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* RLIMIT_FSIZE: EFBIG says it, too */
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void init(void *userdata, struct fuse_conn_info *conn)
{
	struct kv_mount *mount = userdata;

	/* Readdirplus always: du of a million blocks needs it. */
	conn->want &= ~(
		unsigned)(FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_AUTO_INVAL_DATA |
			  FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_ASYNC_DIO);
	conn->want |= conn->capable &
		      (FUSE_CAP_READDIRPLUS | FUSE_CAP_ATOMIC_O_TRUNC |
		       FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS);
	conn->max_readahead = READAHEAD;
	/* Requests in background wait here, by user, and not in the kernel in
	 * order of arrival. */
	conn->max_background = UINT16_MAX;
	conn->congestion_threshold = UINT16_MAX;
	conn->time_gran = 1;
	mount->max_write = conn->max_write;
	mount->max_readahead = conn->max_readahead;
}

static const struct fuse_lowlevel_ops operations = {
	.init = init,
	.lookup = kv_fs_lookup,
	.getattr = kv_fs_getattr,
	.setattr = kv_fs_setattr,
	.readlink = kv_fs_readlink,
	.mknod = kv_fs_mknod,
	.mkdir = kv_fs_mkdir,
	.unlink = kv_fs_unlink,
	.rmdir = kv_fs_rmdir,
	.symlink = kv_fs_symlink,
	.rename = kv_fs_rename,
	.link = kv_fs_link,
	.open = kv_fs_open,
	.read = kv_fs_read,
	.write = kv_fs_write,
	.flush = kv_fs_flush,
	.release = kv_fs_release,
	.fsync = kv_fs_fsync,
	.opendir = kv_fs_opendir,
	.readdir = kv_fs_readdir,
	.readdirplus = kv_fs_readdirplus,
	.releasedir = kv_fs_releasedir,
	.fsyncdir = kv_fs_fsyncdir,
	.statfs = kv_fs_statfs,
	.setxattr = kv_fs_setxattr,
	.getxattr = kv_fs_getxattr,
	.listxattr = kv_fs_listxattr,
	.removexattr = kv_fs_removexattr,
	.create = kv_fs_create,
	.fallocate = kv_fs_fallocate,
	.lseek = kv_fs_lseek,
};

static int add_options(const struct kv_options *o, struct fuse_args *args)
{
	_cleanup_(kv_freep) char *source = NULL, *words = NULL;

	if (asprintf(&source, "fsname=%s", o->store) < 0 ||
	    fuse_opt_add_opt(&words, "default_permissions,subtype=kvfs") < 0 ||
	    fuse_opt_add_opt_escaped(&words, source) < 0 ||
	    fuse_opt_add_opt(&words, "nosuid,nodev") < 0 ||
	    (o->fuse && fuse_opt_add_opt(&words, o->fuse) < 0) ||
	    (o->allow_other && fuse_opt_add_opt(&words, "allow_other") < 0) ||
	    (o->cache.read_only && fuse_opt_add_opt(&words, "ro") < 0) ||
	    fuse_opt_add_arg(args, "kvfs") < 0 ||
	    fuse_opt_add_arg(args, "-o") < 0 ||
	    fuse_opt_add_arg(args, words) < 0 ||
	    (o->debug && fuse_opt_add_arg(args, "-d") < 0))
		return -ENOMEM;
	return 0;
}

static int fail(char **ret_why, const char *path, const char *what)
{
	last_words[strcspn(last_words, "\n")] = '\0';
	return kv_why(ret_why, -EIO, "%s: %s%s%s", path, what,
		      last_words[0] != '\0' ? ": " : "", last_words);
}

static int open_session(struct session *s, char **ret_why)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	int r;

	if (!s->daemon->options->debug)
		fuse_set_log_func(listen_to_libfuse);
	r = add_options(s->daemon->options, &args);
	if (r == 0)
		s->fuse =
			fuse_session_new(&args, &operations, sizeof(operations),
					 s->daemon->mount);
	fuse_opt_free_args(&args);
	if (r < 0)
		return r;
	if (!s->fuse)
		return fail(ret_why, s->path, "cannot make a FUSE session");
	if (fuse_session_mount(s->fuse, s->path) < 0) {
		fuse_session_destroy(kv_steal(s->fuse));
		return fail(ret_why, s->path, "cannot mount");
	}
	return 0;
}

/* The kernel reads ahead 128 KiB on FUSE; blocks are larger.  Only root can
 * say so, and it works without. */
static void raise_readahead(const char *path)
{
	_cleanup_(kv_freep) char *name = NULL;
	struct stat st;
	FILE *f;

	if (stat(path, &st) < 0 ||
	    asprintf(&name, "/sys/class/bdi/%u:%u/read_ahead_kb",
		     major(st.st_dev), minor(st.st_dev)) < 0)
		return;
	f = fopen(name, "we");
	if (!f)
		return;
	fprintf(f, "%u\n", READAHEAD / 1024);
	fclose(f);
}

static void end(struct session *s)
{
	kv_notify_stop(s->daemon->mount->notify);
	kv_requests_end(s->requests);
}

static bool answers(const char *path)
{
	struct statvfs fs;

	if (statvfs(path, &fs) < 0)
		return false;
	raise_readahead(path);
	return true;
}

/*
 * A process that waits for its own answer, and is killed, never ends: the
 * kernel waits for the answer, and holds the mount until the process has ended.
 * So another one asks, which has nothing of ours open.
 */
static bool first_answer(const char *path)
{
	pid_t child = fork();
	int status = 0;

	if (child < 0)
		return answers(path);
	if (child == 0) {
		close_range(STDERR_FILENO + 1, UINT_MAX, 0);
		_exit(answers(path) ? 0 : 1);
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return false;
	return status == 0;
}

static void *guard(void *arg)
{
	struct session *s = arg;
	sigset_t set = ending_signals();
	int signal_number;

	if (!first_answer(s->path)) {
		s->unanswered = !s->ended;
		end(s);
		return NULL;
	}
	kv_umount_announce(s->daemon->options->store, s->path);
	s->ready(s->arg);
	sigwait(&set, &signal_number);
	if (!s->ended)
		end(s);
	return NULL;
}

static int serve(struct session *s)
{
	int r;

	r = kv_requests_new(s->daemon->mount, s->fuse, &s->requests);
	if (r < 0)
		return r;
	r = kv_thread_start(&s->signals, "kvfs-signals", guard, s);
	if (r == 0) {
		r = kv_requests_wait(s->requests);
		s->ended = true;
		pthread_kill(s->signals,
			     SIGTERM); /* blocked: it ends sigwait */
		pthread_join(s->signals, NULL);
	}
	kv_requests_free(s->requests);
	return s->unanswered ? -EIO : r;
}

static int run_mounted(struct session *s, char **ret_why)
{
	int r;

	r = open_session(s, ret_why);
	if (r < 0)
		return r;
	r = kv_notify_start(s->daemon->mount->notify, s->fuse);
	if (r == 0)
		r = serve(s);
	kv_parking_stop(s->daemon->mount->parking);
	fuse_session_unmount(s->fuse);
	kv_notify_stop(s->daemon->mount->notify);
	fuse_session_destroy(s->fuse);
	if (s->unanswered)
		return fail(ret_why, s->path, "the mount does not answer");
	return r;
}

int kv_session_run(struct kv_daemon *daemon, const char *path,
		   void (*ready)(void *arg), void *arg, char **ret_why)
{
	struct session s = {
		.daemon = daemon, .path = path, .ready = ready, .arg = arg};
	sigset_t set = ending_signals();
	int signal_number;

	*ret_why = NULL;
	if (path)
		return run_mounted(&s, ret_why);
	ready(arg);
	sigwait(&set, &signal_number);
	return 0;
}
