/* SPDX-License-Identifier: Apache-2.0 */
/*
 * killer.c - start and kill daemons on one store, again and again, while other programs of
 * the test save, remove and read.
 *
 *   killer DIR DAEMON POINTS-DAEMON ROUNDS SECONDS SEED [FSCK]
 *
 * DIR has the journal, the store, a mount point and the control socket.  Two of three
 * daemons are meant to die at a kill point, the others at any time; a third of the first
 * are slow at another kill point; one in twenty has a FUSE mount; one in eight is asked to end, and often killed meanwhile.  The last daemon is
 * left running, mounted.  Ends after ROUNDS or SECONDS, whichever comes first.
 *
 * OWNS      the daemon, DIR/store, and the journal's numbers of daemons.
 *
 * INVARIANTS
 *   (1) journal->mounts is raised when the last daemon is dead and the next is not
 *       started; journal->ready follows when the next daemon answers.
 *   (2) Blocks of the spaces e, b and c are never evicted: the spaces' reserves are set
 *       before any client saves into a new store.
 *
 * LOCKING   none: one thread.
 */
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "tests/crash/journal.h"
#include "tests/crash/points.h"
#include "tests/crash/report.h"

#define MS 1000000u
/* longest wait for a daemon or another program */
#define PATIENCE_NS (60 * SECOND)
#define OPTIONS "mkdir=all,segment=8M,hugepages=off,scrub=0"
#define FSCK_EVERY 50
#define ENOUGH 20 /* number of faults after which the test ends */

struct round {
	bool points, mounted, clean, settle;
	/* before the daemon starts: make a new store, shrink the store, lose
	 * its index */
	bool fresh, shrink, lose;
	/* number of the kill point at which the daemon is to die, and of that at
	 * which it sleeps; -1: none */
	int point, slow;
	uint64_t hit, delay_ns, slow_ms;
};

static struct journal *journal;
static struct points points;
static const char *dir, *fsck;
/* paths of the daemon's program: without kill points, and with them */
static const char *daemons[2];
static uint64_t seed;
static FILE *rounds_log;
static char store[512], mountpoint[512], control[512], logfile[512];

static bool stale; /* true: the mount of a dead daemon covers the mount point */
/* true: the store has its spaces, and their reserves are set */
static bool made;
static unsigned faults, point_kills, mounts, stale_starts, ends, stores, fscks,
	losses;
static struct report_phases phases;

static void fault(const char *what, const char *detail)
{
	printf("FAULT: %s: %s (mount %llu)\n", what, detail,
	       (unsigned long long)journal->mounts);
	faults++;
}

/* Return the number of faults that all programs have found so far. */
static uint64_t bad(void)
{
	const struct journal *j = journal;

	return faults + j->faults + j->lost + j->wrong + j->damaged +
	       j->returned;
}

static bool chance(long in)
{
	return client_random(&seed, in) == 0;
}

/* ---- one daemon ---- */

static pid_t daemon_begin(const struct round *round)
{
	char options[1400], point[100], slow[100];
	const char *more = getenv("KVFS_MORE");
	pid_t pid;

	snprintf(options, sizeof(options),
		 OPTIONS ",dram=%s,ssd=%s,control=%s%s%s",
		 round->mounted ? "64M" : "32M", round->shrink ? "92M" : "112M",
		 control, more ? ",store=" : "", more ? more : "");
	if (round->point >= 0)
		snprintf(point, sizeof(point), "%s:%llu",
			 points_name(&points, round->point),
			 (unsigned long long)round->hit);
	if (round->slow >= 0)
		snprintf(slow, sizeof(slow), "%s:%llu",
			 points_name(&points, round->slow),
			 (unsigned long long)round->slow_ms);
	pid = fork();
	if (pid != 0)
		return pid;
	if (round->point >= 0)
		setenv("KVFS_POINT", point, 1);
	if (round->slow >= 0)
		setenv("KVFS_SLOW", slow, 1);
	if (freopen(logfile, "a", stderr) == NULL)
		_exit(9);
	dup2(fileno(stderr), 1);
	execl(daemons[round->points], daemons[round->points], "-f", "-o",
	      options, store, round->mounted ? mountpoint : "none", NULL);
	_exit(9);
}

static bool answers(bool mounted)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_(kv_closep) int fd =
		socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct statfs fs;

	memcpy(address.sun_path, control, sizeof(address.sun_path) - 1);
	if (connect(fd, (void *)&address, sizeof(address)) < 0)
		return false;
	return !mounted ||
	       (statfs(mountpoint, &fs) == 0 && fs.f_type == FUSE_SUPER_MAGIC);
}

/* Return 1 if the process is dead, with its status; 0 if it lives. */
static int dead(pid_t pid, int *ret_status)
{
	return waitpid(pid, ret_status, WNOHANG) == pid;
}

/* Wait up to @ns for the death of the process. */
static bool dies(pid_t pid, uint64_t ns, int *ret_status)
{
	uint64_t until = kv_now_ns() + ns;

	while (!dead(pid, ret_status)) {
		if (kv_now_ns() >= until)
			return false;
		usleep(300);
	}
	return true;
}

/* Wait until the daemon is ready.  Return false if it died at its kill point
 * before. */
static bool becomes_ready(pid_t pid, const struct round *round, int *ret_status)
{
	uint64_t from = kv_now_ns();

	while (!answers(round->mounted)) {
		if (dead(pid, ret_status))
			return false;
		if (kv_now_ns() - from > PATIENCE_NS) {
			fault("a daemon", "does not begin to answer");
			kill(pid, SIGKILL);
			waitpid(pid, ret_status, 0);
			return false;
		}
		usleep(500);
	}
	if (round->slow < 0)
		journal_took(&journal->recovery, kv_now_ns() - from);
	return true;
}

/* Return true if all programs have compared their blocks with this daemon's. */
static bool settled(bool mounted)
{
	unsigned n = mounted ? JOURNAL_WRITERS : JOURNAL_SAVERS;

	for (unsigned i = 0; i < n; i++)
		if ((journal->active & 1u << i) &&
		    journal->settled[i] != journal->mounts)
			return false;
	return true;
}

/* Wait until all programs have compared their blocks.  Return false if the
 * daemon died meanwhile. */
static bool wait_settled(pid_t pid, bool mounted, int *ret_status)
{
	uint64_t until = kv_now_ns() + PATIENCE_NS;

	while (!settled(mounted)) {
		if (dead(pid, ret_status))
			return false;
		if (kv_now_ns() > until) {
			fault("a program", "does not come to an end with "
					   "comparing");
			return true;
		}
		usleep(500);
	}
	return true;
}

/* Return how long to wait for the daemon to die at its kill point; less if that
 * point has killed before. */
static uint64_t patience(const struct round *round)
{
	bool known = points.kills[round->point] > 0;

	return (round->mounted ? 240 : 80) * MS / (known ? 3 : 1);
}

static int end_daemon(pid_t pid, const struct round *round)
{
	int status;

	if (dies(pid, round->delay_ns, &status))
		return status;
	if (round->clean) {
		kill(pid, SIGTERM);
		ends++;
		if (dies(pid, chance(2) ? PATIENCE_NS : round->delay_ns / 2,
			 &status))
			return status;
	} else if (round->point >= 0 && dies(pid, patience(round), &status)) {
		return status;
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return status;
}

/* ---- a round: a daemon's life and its end ---- */

static struct round plan(unsigned number)
{
	struct round r = {.point = -1, .slow = -1};
	const char *name;

	r.points = number % 3 != 0;
	r.mounted = number % 20 == 0 || !made;
	r.clean = chance(8);
	r.settle = !chance(4);
	r.delay_ns = (uint64_t)client_random(&seed, (chance(4) ? 80 : 20) * MS);
	r.lose = chance(50);
	if (r.points)
		r.point = points_choose(&points, &seed);
	if (r.point >= 0 && chance(3)) {
		r.slow = (int)client_random(&seed, (long)points.table->n);
		r.slow_ms = 20 + (uint64_t)client_random(&seed, 200);
	}
	if (r.point < 0) {
		r.mounted |= r.lose;
		return r;
	}
	/* wait until all programs have compared their blocks: most kill points
	 * are passed only afterwards */
	r.settle = true;
	r.hit = points_hit(&points, r.point, &seed);
	name = points_name(&points, r.point);
	for (size_t i = 0; i < KV_ARRAY_LEN(points_need); i++) {
		size_t n = strlen(points_need[i].prefix);

		if (strncmp(name, points_need[i].prefix, n) != 0)
			continue;
		r.fresh = points_need[i].fresh;
		r.shrink = points_need[i].shrink;
		r.clean = points_need[i].clean;
		r.lose = points_need[i].lose;
		r.mounted |= points_need[i].mounted;
	}
	r.mounted |= r.fresh || r.lose;
	return r;
}

static void command(const char *text, const char *what)
{
	if (system(text) != 0)
		fault("a command fails", what);
}

static void new_store(void)
{
	const char *more = getenv("KVFS_MORE");
	char text[1200];

	snprintf(text, sizeof(text), "rm -rf '%s' '%s'", store,
		 more ? more : store);
	command(text, text);
	made = false;
	stores++;
	atomic_fetch_add(&journal->stores, 1);
}

/* Remove the index, and with it all reserves of spaces. */
static void lose_index(void)
{
	char path[600];

	snprintf(path, sizeof(path), "%s/store", store);
	if (access(path, F_OK) < 0)
		return;
	snprintf(path, sizeof(path), "%s/index/data.mdb", store);
	unlink(path);
	losses++;
	made = false;
	atomic_fetch_add(&journal->rebuilt, 1);
}

static void prepare(const struct round *round)
{
	if (round->fresh)
		new_store();
	if (round->shrink)
		atomic_fetch_add(&journal->forgiven, 1);
	if (round->lose)
		lose_index();
	atomic_fetch_add(&journal->mounts, 1);
}

/* In some rounds, unmount a dead daemon's mount; mostly the next daemon does
 * that. */
static void after_mount(void)
{
	stale = true;
	if (chance(4)) {
		umount2(mountpoint, MNT_DETACH);
		stale = false;
	}
}

static void judge_end(const struct round *round, int status)
{
	char text[100];

	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return;
	if (round->clean && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
		stale = false;
		return;
	}
	snprintf(text, sizeof(text), "status %x", (unsigned)status);
	fault("a daemon ended by itself", text);
}

/* Check that kvfs-fsck finds no leaked slot, and no fault at all after a clean
 * end of the daemon. */
static void check_store(bool clean)
{
	char command[1200];
	int r;

	snprintf(command, sizeof(command), "'%s' '%s' > '%s/fsck' 2>&1", fsck,
		 store, dir);
	r = system(command);
	fscks++;
	if (clean && r != 0)
		fault("kvfs-fsck after a clean end", "see DIR/fsck");
	snprintf(command, sizeof(command), "! grep -qi leaked '%s/fsck'", dir);
	if (system(command) != 0)
		fault("kvfs-fsck", "something leaked, see DIR/fsck");
}

/* Record the round in DIR/rounds, to find the cause of a fault. */
static void note(const struct round *r)
{
	fprintf(rounds_log, "%llu%s%s%s%s%s %s:%llu %s:%llu\n",
		(unsigned long long)journal->mounts, r->mounted ? " FUSE" : "",
		r->clean ? " end" : "", r->fresh ? " fresh" : "",
		r->shrink ? " shrink" : "", r->lose ? " lose" : "",
		r->point < 0 ? "" : points_name(&points, r->point),
		(unsigned long long)r->hit,
		r->slow < 0 ? "" : points_name(&points, r->slow),
		(unsigned long long)r->slow_ms);
}

static void play(unsigned number)
{
	struct round round = plan(number);
	int status = 0;
	pid_t pid;

	phases.began = kv_now_ns();
	prepare(&round);
	report_phase_over(&phases, REPORT_PREPARING);
	stale_starts += round.mounted && stale;
	mounts += round.mounted;
	pid = daemon_begin(&round);
	note(&round);
	if (becomes_ready(pid, &round, &status)) {
		made |= round.mounted && journal_set_up(mountpoint);
		if (made) {
			journal->ready_ns = kv_now_ns();
			if (round.mounted)
				journal->mounted = journal->mounts;
			atomic_store(&journal->ready, journal->mounts);
		}
		report_phase_over(&phases, REPORT_STARTING);
		if (!made || !round.settle ||
		    wait_settled(pid, round.mounted, &status)) {
			report_phase_over(&phases, REPORT_COMPARING);
			status = end_daemon(pid, &round);
		}
	}
	report_phase_over(&phases, REPORT_LIVING);
	if (round.mounted)
		after_mount();
	judge_end(&round, status);
	if (round.point >= 0 &&
	    points.table->entry[round.point].hits >= round.hit) {
		points.kills[round.point]++;
		point_kills++;
	}
	points_learn(&points);
	if (fsck != NULL && number % FSCK_EVERY == 0)
		check_store(WIFEXITED(status));
	report_phase_over(&phases, REPORT_CHECKING);
}

/* Start the last daemon, which is left running. */
static void last(void)
{
	struct round round = {.point = -1, .slow = -1, .mounted = true};
	int status;
	pid_t pid;

	atomic_fetch_add(&journal->mounts, 1);
	pid = daemon_begin(&round);
	if (!becomes_ready(pid, &round, &status) ||
	    !journal_set_up(mountpoint)) {
		fault("the last daemon", "does not answer");
		return;
	}
	journal->ready_ns = kv_now_ns();
	journal->mounted = journal->mounts;
	atomic_store(&journal->ready, journal->mounts);
	wait_settled(pid, true, &status);
}

static char idle_points[1000];

/* Print the report.  Return how many kill points never killed a daemon, with
 * their names in idle_points. */
static unsigned report(unsigned rounds, uint64_t ns)
{
	unsigned never =
		points_print(&points, idle_points, sizeof(idle_points));

	printf("%u kills in %.0f s (%.0f ms each): %u at %u points, %u of FUSE "
	       "mounts (%u begun over a dead one), %u ends, %u stores, %u "
	       "indexes lost, %u times kvfs-fsck\n",
	       rounds, (double)ns / 1e9, (double)ns / 1e6 / rounds, point_kills,
	       points.table->n, mounts, stale_starts, ends, stores, losses,
	       fscks);
	report_phases(&phases, rounds);
	report_totals(journal, faults);
	return never;
}

int main(int argc, char **argv)
{
	unsigned rounds, number = 0, never;
	uint64_t from = kv_now_ns(), until;

	if (argc < 7)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	dir = argv[1];
	daemons[0] = argv[2];
	daemons[1] = argv[3];
	rounds = (unsigned)atoi(argv[4]);
	until = from + strtoull(argv[5], NULL, 0) * SECOND;
	seed = strtoull(argv[6], NULL, 0) * 7919;
	fsck = argc > 7 ? argv[7] : NULL;
	snprintf(store, sizeof(store), "%s/store", dir);
	snprintf(mountpoint, sizeof(mountpoint), "%s/mnt", dir);
	snprintf(control, sizeof(control), "%s/sock", dir);
	snprintf(logfile, sizeof(logfile), "%s/log", dir);
	snprintf(control + 300, 200, "%s/journal", dir);
	journal = journal_open(control + 300);
	snprintf(control + 300, 200, "%s/points", dir);
	points_open(&points, control + 300);
	setenv("KVFS_POINTS", control + 300, 1);
	snprintf(control + 300, 200, "%s/rounds", dir);
	rounds_log = fopen(control + 300, "we");
	if (rounds_log == NULL)
		return 2;
	setvbuf(rounds_log, NULL, _IOLBF, 0);
	while (number < rounds && kv_now_ns() < until && bad() < ENOUGH)
		play(number++);
	from = kv_now_ns() - from;
	last();
	never = report(number, from);
	if (number < rounds)
		printf("the time was over after %u of %u rounds\n", number,
		       rounds);
	if (number == rounds && rounds >= 2000 && never > 0)
		fault("kill points that killed nobody", idle_points);
	if (number == rounds && rounds >= 2000 && stale_starts < 50)
		fault("dead mounts", "too few were mounted over");
	return bad() != 0;
}
