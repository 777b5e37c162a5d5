/* SPDX-License-Identifier: Apache-2.0 */
/* A prefill process P saves whole blocks and holds them; a decode process D
 * waits for the blocks and loads them layer by layer.  P is this program again;
 * the test kills P at every stage, and D gets exact bytes or a clean miss. */
#include "tests/fs/peer.h"
#include "tests/kernels/layered.h"
#include "tests/kernels/slow.h"

#define N 24

/* ---- the prefill process P ---- */

static bool say(char c)
{
	return write(STDOUT_FILENO, &c, 1) == 1;
}

static void hear(void)
{
	char c;

	if (read(STDIN_FILENO, &c, 1) != 1)
		_exit(2);
}

static kvfs_xfer *prefill(struct world *w, uint32_t first, size_t n)
{
	const kvfs_opts opts = {.size = sizeof(opts),
				.flags = KVFS_HOLD | KVFS_MUST};

	return layered_save_by(w->pool, w->space, first, n, &opts);
}

static void prefill_open(struct world *w)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};
	struct layered l;

	w->memory = malloc((size_t)PAGES * PAYLOAD);
	layered_fill(w, N);
	layered_open(w, &l);
	w->session = l.session;
	w->space = l.space;
	w->pool = l.pool;
	/* The staging memory has room for all N blocks at once. */
	kvfs_pool_staging(w->pool, 16u << 20, 1);
	while (info.bytes_staging < 16u << 20) {
		usleep(1000);
		kvfs_pool_info(w->pool, &info);
	}
}

static void prefill_all(struct world *w, enum kvfs_stage stage)
{
	kvfs_xfer_wait(prefill(w, 0, N), stage, KVFS_FOREVER);
	say('+');
}

/* Save blocks @first .. N - 1; their copies wait for slow_shut(false). */
static kvfs_xfer *prefill_shut(struct world *w, uint32_t first)
{
	kvfs_xfer *xfer;

	slow_shut(true);
	xfer = prefill(w, first, N - first);
	while (layered_state(w->space, N - 1) != KVFS_SAVING)
		usleep(1000);
	say('+');
	return xfer;
}

/* Seal the first half of the blocks, and hold up the copies of the second
 * half. */
static void prefill_half(struct world *w)
{
	kvfs_xfer_wait(prefill(w, 0, N / 2), KVFS_SEALED, KVFS_FOREVER);
	prefill_shut(w, N / 2);
}

static void after_reserving(struct world *w)
{
	static struct peer p;

	if (!peer_connect(&p, w->path) || peer_hello(&p) < 0 ||
	    peer_space(&p, w->space_name, "", 0, 0) < 0 ||
	    peer_each(&p,
		      &(struct wire_header){.type = WIRE_RESERVE,
					    .flags = WIRE_HOLD | WIRE_MUST},
		      0, 1) < 0)
		_exit(3);
	say('+');
}

/* Copy the held blocks when the test sends a byte. */
static void when_told(struct world *w)
{
	kvfs_xfer *xfer = prefill_shut(w, 0);

	hear();
	slow_shut(false);
	kvfs_xfer_wait(xfer, KVFS_SEALED, KVFS_FOREVER);
	say('+');
}

static void at_once(struct world *w)
{
	say('+');
	prefill_all(w, KVFS_SEALED);
}

static int be_prefill(const char *stage, const char *path, const char *space)
{
	struct world *w = calloc(1, sizeof(*w));

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(w->path, sizeof(w->path), "%s", path);
	snprintf(w->space_name, sizeof(w->space_name), "%s", space);
	prefill_open(w);
	if (strcmp(stage, "opened") == 0)
		say('+');
	else if (strcmp(stage, "reserved") == 0)
		after_reserving(w);
	else if (strcmp(stage, "copying") == 0)
		prefill_shut(w, 0);
	else if (strcmp(stage, "half") == 0)
		prefill_half(w);
	else if (strcmp(stage, "copied") == 0)
		prefill_all(w, KVFS_COPIED);
	else if (strcmp(stage, "sealed") == 0)
		prefill_all(w, KVFS_SEALED);
	else if (strcmp(stage, "told") == 0)
		when_told(w);
	else
		at_once(w);
	pause();
	return 0;
}

/* ---- the decode process D ---- */

struct prefill {
	pid_t pid;
	int in, out;
};

static void start(struct world *w, const char *stage, struct prefill *p)
{
	int in[2], out[2];

	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	p->pid = fork();
	if (p->pid == 0) {
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		execl("/proc/self/exe", "prefill", stage, w->path,
		      w->space_name, NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	p->in = in[1];
	p->out = out[0];
}

static void heard(struct prefill *p)
{
	char c = 0;

	assert_int_equal(read(p->out, &c, 1), 1);
	assert_int_equal(c, '+');
}

static void end(struct prefill *p)
{
	int status;

	kill(p->pid, SIGKILL);
	assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
	assert_true(WIFSIGNALED(status));
	close(p->in);
	close(p->out);
}

static kvfs_lease *decode_ask(struct world *w)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, N};
	kvfs_lease *lease;

	world_chain(0, N, keys, pages);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.flags = KVFS_WAIT_SAVING,
						.deadline = 20 * SECOND),
				      &lease),
			 0);
	return lease;
}

/* Check that every block is exact or absent.  Return how many are present. */
static size_t decode(struct world *w, kvfs_lease *lease)
{
	const kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_BY_LAYER};
	int64_t pages[N];
	kvfs_xfer *xfer;
	size_t i, n = 0;

	assert_true(kvfs_lease_wait(lease, 60 * SECOND) >= 0);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	for (i = 0; i < N; i++)
		pages[i] = (int64_t)(PAGES - 1 - i);
	assert_int_equal(kvfs_load(w->pool, lease, N, pages, &opts, &xfer), 0);
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >= 0);
	for (i = 0; i < N; i++) {
		int status = kvfs_xfer_status(xfer, i);

		assert_true(status == 0 || status == -ENOENT);
		assert_int_equal(status, kvfs_lease_status(lease, i));
		if (status == 0)
			assert_true(world_page_is(w, pages[i], (uint32_t)i));
		n += status == 0;
	}
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
	return n;
}

/* Return the MiB of DRAM in slots, from the daemon's statistics. */
static double dram_used(struct world *w)
{
	double used = -1;
	char *text;

	assert_int_equal(kvfs_stats(w->session, &text), 0);
	assert_int_equal(sscanf(text, "dram %lf", &used), 1);
	free(text);
	return used;
}

static uint64_t longest;

/* Check that P left no reservation or lease, and a clear leaves no block. */
static void nothing_leaked(struct world *w, double before)
{
	uint64_t since = kv_now_ns();

	world_wait_stat(w, "being saved", 0);
	world_wait_stat(w, "leased", 0);
	longest = KV_MAX(longest, kv_now_ns() - since);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	world_wait_stat(w, "not yet on SSD", 0);
	/* Slots of blocks that are removed while they are written to SSD are
	 * freed later. */
	for (int i = 0; i < 2000 && dram_used(w) > before; i++)
		usleep(10000);
	assert_true(dram_used(w) <= before);
}

static void P_hands_over_to_D(void **state)
{
	struct world *w = *state;
	double before = dram_used(w);
	struct prefill p;
	kvfs_lease *lease;

	start(w, "told", &p);
	heard(&p);
	assert_int_equal(layered_state(w->space, 0), KVFS_SAVING);
	lease = decode_ask(w);
	assert_int_equal(kvfs_lease_poll(lease), 0);
	assert_int_equal(write(p.in, "+", 1), 1);
	assert_int_equal(decode(w, lease), N);
	heard(&p);
	/* P's leases stay until P frees them or dies. */
	assert_int_equal(world_stat(w, "leased"), N);
	end(&p);
	nothing_leaked(w, before);
}

/* Kill the prefill process at @stage.  The decode process requests the
 * blocks before and after the kill, and gets @min to @max of them. */
static void killed_at(struct world *w, const char *stage, size_t min,
		      size_t max)
{
	double before = dram_used(w);
	struct prefill p;
	kvfs_lease *lease;
	size_t n;

	start(w, stage, &p);
	heard(&p);
	lease = decode_ask(w);
	end(&p);
	n = decode(w, lease);
	assert_in_range(n, min, max);
	n = decode(w, decode_ask(w));
	assert_in_range(n, min, max);
	nothing_leaked(w, before);
}

static void P_dies_before_it_reserves(void **state)
{
	killed_at(*state, "opened", 0, 0);
}

static void P_dies_when_it_has_reserved(void **state)
{
	killed_at(*state, "reserved", 0, 0);
}

static void P_dies_while_it_copies(void **state)
{
	killed_at(*state, "copying", 0, 0);
}

static void P_dies_after_half_of_the_blocks(void **state)
{
	killed_at(*state, "half", N / 2, N / 2);
}

static void P_dies_when_all_is_copied(void **state)
{
	killed_at(*state, "copied", 0, N);
}

static void P_dies_when_all_is_sealed_and_held(void **state)
{
	killed_at(*state, "sealed", N, N);
}

static void P_dies_at_any_moment(void **state)
{
	struct world *w = *state;
	double before = dram_used(w);
	size_t got[3] = {0}, n;
	struct prefill p;
	kvfs_lease *lease;
	unsigned i;

	for (i = 0; i < 24; i++) {
		start(w, "any", &p);
		heard(&p);
		usleep(i * 2000);
		lease = decode_ask(w);
		end(&p);
		n = decode(w, lease);
		got[n == 0 ? 0 : n < N ? 1 : 2]++;
		nothing_leaked(w, before);
	}
	print_message("of 24 times D got nothing %zu, some %zu, all %zu\n",
		      got[0], got[1], got[2]);
	print_message("all that P had was back after %u ms at most\n",
		      (unsigned)(longest / 1000000));
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, layered_setup, world_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		test(P_hands_over_to_D),
		test(P_dies_before_it_reserves),
		test(P_dies_when_it_has_reserved),
		test(P_dies_while_it_copies),
		test(P_dies_after_half_of_the_blocks),
		test(P_dies_when_all_is_copied),
		test(P_dies_when_all_is_sealed_and_held),
		test(P_dies_at_any_moment),
	};

	slow.plain = true;
	if (argc == 4)
		return be_prefill(argv[1], argv[2], argv[3]);
	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
