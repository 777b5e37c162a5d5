/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - the daemon's process: parse, check, open the store, mount, serve, close; its
 * log while it runs in the background; and words that name another program.
 *
 * OWNS      the process: parent and child while it becomes a daemon, and its standard
 *           descriptors; the queue of lines for the system's log.
 *
 * STATES    the parent waits for one byte, the exit status, which the child sends once
 *           the mount answers, or when the start fails.
 *
 * LOCKING   forks, also of the warden and the gate, come before any thread.  log.lock
 *           guards the queue and is a leaf lock.
 */
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <syslog.h>

#include "common/bytes.h"
#include "common/thread.h"
#include "fs/control/control.h"
#include "fs/daemon.h"

#define OOM_SCORE_MAX 900u /* at -1000 the kernel would never kill kvfs */

static int complain(const char *why, int error)
{
	fprintf(stderr, "kvfs: %s\n", why ? why : strerror(-error));
	return 1;
}

/* ---- the log of a daemon in the background ---- */

#define LOG_LINES 256u
/* longest wait for syslog(3) when the process ends */
#define LOG_FLUSH_NS UINT64_C(1000000000)

/* Lines for syslog(3), which a thread of its own calls, as it may block. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned first, n, dropped; /* lock */
	char *lines[LOG_LINES];	    /* lock */
} log_queue = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *send_lines(void *arg)
{
	unsigned dropped;
	char *line;

	(void)arg;
	openlog("kvfs", LOG_PID, LOG_DAEMON);
	pthread_mutex_lock(&log_queue.lock);
	for (;;) {
		while (log_queue.n == 0)
			pthread_cond_wait(&log_queue.changed, &log_queue.lock);
		line = log_queue.lines[log_queue.first];
		dropped = log_queue.dropped;
		log_queue.dropped = 0;
		pthread_mutex_unlock(&log_queue.lock);
		if (dropped > 0)
			syslog(LOG_WARNING, "%u lines were dropped", dropped);
		syslog(LOG_WARNING, "%s", line);
		free(line);
		pthread_mutex_lock(&log_queue.lock);
		log_queue.first = (log_queue.first + 1) % LOG_LINES;
		log_queue.n--;
		pthread_cond_broadcast(&log_queue.changed);
	}
	return NULL;
}

/* Queue the lines that are written to stderr, for syslog(3).  Always returns
 * @n: otherwise stdio would write the rest again. */
static ssize_t queue_lines(void *cookie, const char *text, size_t n)
{
	static const char name[] = "kvfs: ";
	const char *at = text, *end = text + n, *stop;
	char *line;

	(void)cookie;
	for (; at < end; at = stop + 1) {
		stop = memchr(at, '\n', (size_t)(end - at));
		if (!stop)
			stop = end;
		if ((size_t)(stop - at) > strlen(name) &&
		    memcmp(at, name, strlen(name)) == 0)
			at += strlen(name);
		line = stop > at ? strndup(at, (size_t)(stop - at)) : NULL;
		pthread_mutex_lock(&log_queue.lock);
		if (line && log_queue.n < LOG_LINES)
			log_queue.lines[(log_queue.first + log_queue.n++) %
					LOG_LINES] = kv_steal(line);
		else
			log_queue.dropped += stop > at;
		pthread_cond_broadcast(&log_queue.changed);
		pthread_mutex_unlock(&log_queue.lock);
		free(line);
	}
	return (ssize_t)n;
}

/* Detach from the caller's terminal and pipes.  If standard error is a file, it stays;
 * otherwise its lines go to the system's log. */
static void detach(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct stat st;
	const bool keep = fstat(2, &st) == 0 && S_ISREG(st.st_mode);
	pthread_t thread;
	FILE *file;

	for (int fd = 0; null >= 0 && fd < (keep ? 2 : 3); fd++)
		dup2(null, fd);
	if (null > 2)
		close(null);
	kv_cond_init(&log_queue.changed);
	if (keep || kv_thread_start(&thread, "kvfs-log", send_lines, NULL) < 0)
		return;
	pthread_detach(thread);
	file = fopencookie(NULL, "w",
			   (cookie_io_functions_t){.write = queue_lines});
	if (!file)
		return;
	setvbuf(file, NULL, _IOLBF, 0);
	stderr = file;
}

/* ---- the process ---- */

/* Report that the mount answers, and go to the background. */
static void on_ready(void *arg)
{
	int *to_parent = arg;

	if (*to_parent < 0)
		return;
	detach();
	(void)!write(*to_parent, "", 1);
	close(*to_parent);
	*to_parent = -1;
}

/*
 * Keep the memory of blocks from making the daemon the first process that the kernel
 * kills when memory is short; the daemon's other memory counts as usual.  A score
 * other than 0 stays.  Only root can lower the score.
 */
static void lower_oom_score(uint64_t dram)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) *
			  (uint64_t)sysconf(_SC_PAGESIZE);
	FILE *f = fopen("/proc/self/oom_score_adj", "r+e");
	int score = 0;

	if (!f)
		return;
	if (fscanf(f, "%d", &score) == 1 && score == 0) {
		rewind(f);
		fprintf(f, "-%llu\n",
			(unsigned long long)KV_MIN(dram * 1000 / memory,
						   OOM_SCORE_MAX));
	}
	fclose(f);
}

/* Allow many descriptors, for segments, clients and connections. */
static void raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	/* Limit malloc(3) to few arenas: each keeps its peak of memory. */
	mallopt(M_ARENA_MAX, 4);
}

/* Serve until the end, and return the exit status.  *@to_parent is a pipe to a parent that
 * waits for one byte, the exit status; -1: no parent waits, or the status was sent. */
static int serve(const struct kv_options *options, const char *mountpoint,
		 int *to_parent)
{
	_cleanup_(kv_freep) char *why = NULL;
	struct kv_warden warden;
	struct kv_daemon *daemon;
	struct kv_gate *gate = NULL;
	int r, status = 0;
	uint64_t until;

	raise_limits();
	lower_oom_score(options->cache.dram);
	r = kv_warden_start(options, mountpoint,
			    options->foreground ? NULL : detach, &warden);
	if (r == 0)
		r = kv_gate_start(&gate);
	if (r < 0)
		return complain(r == -EAGAIN ? "no more processes may run "
					       "(ulimit -u, pids.max)"
					     : NULL,
				r);
	kv_session_block_signals();
	r = kv_daemon_open(options, &warden, gate, &daemon, &why);
	if (r == 0) {
		r = kv_session_run(daemon, mountpoint, on_ready, to_parent,
				   &why);
		if (r < 0)
			status = complain(why, r);
		kv_daemon_close(daemon);
	} else {
		status = complain(why, r);
	}
	kv_gate_stop(gate);
	/* Wait until the log has all lines, but not for long. */
	until = kv_now_ns() + LOG_FLUSH_NS;
	pthread_mutex_lock(&log_queue.lock);
	while (log_queue.n > 0 &&
	       kv_cond_wait_until(&log_queue.changed, &log_queue.lock, until) ==
		       0)
		;
	pthread_mutex_unlock(&log_queue.lock);
	return status;
}

static int serve_in_background(const struct kv_options *options,
			       const char *mountpoint)
{
	char status;
	int pipes[2];
	ssize_t n;
	pid_t pid;

	if (pipe2(pipes, O_CLOEXEC) < 0)
		return complain(NULL, -errno);
	pid = fork();
	if (pid < 0)
		return complain(NULL, -errno);
	if (pid > 0) {
		close(pipes[1]);
		/* The child prints its error messages itself. */
		do
			n = read(pipes[0], &status, 1);
		while (n < 0 && errno == EINTR);
		/* Wait for the end of the child, so that a second start finds the
		 * store unlocked, but not for long: the child may hang in a
		 * remote directory. */
		if (n != 1 || status != 0)
			kv_child_end(pid);
		return n == 1 ? status
			      : complain("the daemon died while it started", 0);
	}
	close(pipes[0]);
	setsid();
	if (chdir("/") < 0)
		return complain(NULL, -errno);
	status = (char)serve(options, mountpoint, &pipes[1]);
	if (pipes[1] >= 0 && write(pipes[1], &status, 1) != 1)
		return 1;
	return status;
}

/* ---- words: `kvfs WORD ...` ---- */

/* The words of command.py, and those whose programs are called kvfs-WORD. */
static const struct {
	const char *text;
	bool is_program;
} words[] = {
	{"bench", true}, {"bundle", true}, {"du"},	     {"events"},
	{"exporter"},	 {"flame"},	   {"forget", true}, {"fsck", true},
	{"ls"},		 {"pin"},	   {"replay", true}, {"rm"},
	{"set"},	 {"status"},	   {"top"},	     {"tree"},
	{"unpin"},	 {"warm"},	   {"why"}};

/* Replace this process by the program for the word argv[1].  Returns 0 if that is no word,
 * or an exit status. */
static int run_word(int argc, char **argv)
{
	/* As they are installed; in the wheel; in a checkout. */
	static const char *const places[][3] = {
		{"../libexec/kvfs/", "../", "../connectors/kvfs/"},
		{"", "../tools/"}};
	char folder[PATH_MAX], path[PATH_MAX + 64];
	_cleanup_(kv_freep) char **args =
		calloc((size_t)argc + 3, sizeof(*args));
	ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
	size_t i = 0;
	bool program;

	while (i < KV_ARRAY_LEN(words) && strcmp(words[i].text, argv[1]) != 0)
		i++;
	if (i == KV_ARRAY_LEN(words))
		return 0;
	if (n < 0 || !args)
		return complain(NULL, n < 0 ? -errno : -ENOMEM);
	program = words[i].is_program;
	while (folder[n - 1] != '/')
		n--;
	args[0] = (char *)"python3";
	args[1] = (char *)"-IXutf8"; /* in every locale */
	args[2] = path;
	memcpy(args + 3, argv + 1, ((size_t)argc - 1) * sizeof(*args));
	for (i = 0; i < 3 && places[program][i]; i++) {
		snprintf(path, sizeof(path), "%.*s%s%s%s", (int)n, folder,
			 places[program][i], program ? "kvfs-" : "command.py",
			 program ? argv[1] : "");
		if (access(path, F_OK) < 0)
			continue;
		if (program)
			args[3] = path;
		execvp(program ? path : args[0], args + (program ? 3 : 0));
		fprintf(stderr, "kvfs %s: %s: %s%s\n", argv[1],
			program ? path : args[0], strerror(errno),
			program ? "" : ": install the package python3");
		return 1;
	}
	fprintf(stderr, "kvfs %s: %s is missing: install the package kvfs\n",
		argv[1], path);
	return 1;
}

int main(int argc, char **argv)
{
	_cleanup_(kv_freep) char *why = NULL, *mountpoint = NULL;
	struct kv_options options;
	int r, status = 0, to_parent = -1;

	/* Let no file of the daemon or of a command become a standard descriptor. */
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			(void)!open("/dev/null", fd == 1 ? O_RDONLY : O_RDWR);
	if (argc > 1 && !kv_mount_called(argv[0]) &&
	    !kv_umount_called(argv[0]) && (status = run_word(argc, argv)) != 0)
		return status;
	/* The mount must not keep a lock or a pipe of the caller open. */
	(void)close_range(3, ~0U, 0);
	if (kv_umount_called(argv[0]))
		return kv_umount_main(argc, argv);
	if (argc > 1 && strcmp(argv[1], "--forget") == 0)
		return complain("--forget: use kvfs-forget(1)", -EINVAL);
	if (argc > 1 && strcmp(argv[1], "--health") == 0)
		return kv_health_main(argc - 2, argv + 2);
	r = kv_options_parse(argc, argv, &options, &why);
	if (r < 0)
		return complain(why, r);
	switch (options.action) {
	case KV_SHOW_HELP:
		kv_options_help(stdout);
		break;
	case KV_SHOW_VERSION:
		printf("kvfs %s\n", KV_VERSION);
		break;
	default:
		if (options.mountpoint)
			r = kv_mountpoint_check(options.mountpoint,
						options.store, &mountpoint,
						&why);
		if (r == 0 && mountpoint && options.control &&
		    kv_mountpoint_covers(mountpoint, options.control) > 0)
			r = kv_why(&why, -EINVAL,
				   "control=: the socket must not lie in the "
				   "mount");
		if (r < 0 || options.action == KV_FAKE)
			break;
		status = options.foreground
				 ? serve(&options, mountpoint, &to_parent)
				 : serve_in_background(&options, mountpoint);
	}
	kv_options_fini(&options);
	return r < 0 ? complain(why, r) : status;
}
