/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuts.c - cut the power of a logged disk at many points, and check the rest of the store
 * on the disk.
 *
 *   cuts LOG BYTES FILESYSTEM DIRECTORY IMAGES SEED FSCK [lies] [N]
 *
 * DIRECTORY is an empty one, to mount on; the store is `store` in it.  With KVFS_SECOND, a
 * second directory to mount on, two disks lose power at the same instant, each with its
 * own unflushed writes; KVFS_MORE is the store=DIR on the second one.  "lies": the disk
 * answers flushes without flushing; then losses are only counted.  N: check only image N.
 *
 * FSCK is kvfs-fsck: it checks every eighth image, and must find no damage, and it
 * rebuilds the index of every eighth image, which must change nothing.
 *
 * A process of its own opens each image as a daemon would, compares it with the journal
 * as it was at the cut, and saves a block to it.  Exits 1 if a promise is broken.
 *
 * OWNS      nothing that outlives the program.
 *
 * LOCKING   none: one thread; the child uses the tally while it lives.
 */
#include <sys/wait.h>

#include "cache/cache.h"
#include "common/copy.h"
#include "tests/crash/image.h"
#include "tests/crash/journal.h"
#include "tests/cache/alone.h"

#define LIE 400	     /* number of records that a lying disk may forget */
#define PATIENCE 120 /* seconds that the check of one image may take */

struct tally {
	unsigned images, unmountable, unopened, died;
	unsigned acknowledged, strays, looked, remade, doubted;
	uint64_t unflushed;
};

/* counts, in memory shared with the child processes */
static struct tally *tally;
/* the journal as it was when the power was cut */
static struct journal *journal;
/* remade: kvfs-fsck has rebuilt the index of the image being checked */
static bool lies, remade;
static int only = -1; /* number of the only image to check; -1: all */
static const char *type, *fsck;
static const char *directories[2]; /* where the disks are mounted */
static unsigned disks;

/* Return the generation of the block, 0 if absent, or -errno. */
static int64_t look(struct kv_cache *cache, struct kv_space *space, uint64_t id)
{
	kvfs_key name = content_key(id);
	struct kv_key key = {.len = (uint8_t)name.len};
	struct kv_block *block;
	struct kv_view view;
	uint64_t gen = 0;
	int r;

	memcpy(key.b, name.bytes, name.len);
	if (kv_block_get(cache, space, &key, &block) < 0)
		return 0;
	r = kv_view_get(cache, block, KV_VIEW_WAIT, &view);
	if (r == 0) {
		if (content_check_file(view.data, view.length, id, &gen) < 0)
			r = -EILSEQ;
		kv_view_put(cache, &view);
	}
	kv_block_put(cache, block);
	if (r < 0 && r != -ENOENT)
		return r == -EILSEQ ? r : -EBADMSG;
	return (int64_t)gen;
}

/* Check the blocks of the space @letter, and that the space has no others. */
static void check_space(struct kv_cache *cache, char letter)
{
	const char name[2] = {letter, '\0'};
	struct kv_space *space = kv_space_find(cache, name);
	uint64_t n = 0, there = 0;

	for (unsigned w = 0; w < JOURNAL_WRITERS; w++) {
		if (journal_space[w] != letter)
			continue;
		for (unsigned i = 0; i < JOURNAL_ITEMS; i++) {
			uint64_t id = journal_id(w, i);
			int64_t gen = space ? look(cache, space, id) : 0;

			struct journal_entry e = journal_get(journal, w, i);

			/* A half-written block may have its prologue, which is
			 * all that a rebuild reads. */
			if (remade && gen == -EBADMSG && !e.must)
				gen = 0;
			journal_judge(journal, e, gen, id);
			tally->acknowledged += e.must;
			n += gen > 0;
		}
	}
	if (space != NULL)
		there = kv_space_stat(cache, space).blocks;
	if (n != there && !lies) {
		tally->strays++;
		printf("space %c has %llu blocks, %llu of them ours\n", letter,
		       (unsigned long long)there, (unsigned long long)n);
	}
}

/* Check that the store still takes a block. */
static int save_one(struct kv_cache *cache)
{
	struct kv_meta meta = {.mtime_ns = kv_wall_ns()};
	uint64_t id = content_id('b', 9, 0), n = content_payload(id, 1);
	struct kv_digest digest;
	struct kv_space *space;
	struct kv_fill *fill = NULL;
	struct kv_key key = {.len = 16};
	int r;

	r = kv_space_create(cache, "after", 0, 0, 0700, &space);
	if (r == 0)
		r = begin_alone(cache, space, n, &fill);
	if (r < 0)
		return r;
	content_fill(kv_fill_data(fill), id, 1);
	digest = kv_digest_of(kv_fill_data(fill), n);
	r = kv_fill_seal(cache, fill, &key, &meta, 0, &digest);
	return r < 0 ? r : kv_space_sync(cache, space);
}

static int check_store(void)
{
	char path[512], *why = NULL;
	struct kv_cache_config config = {.store = path,
					 .dram = 16 << 20,
					 .ssd = 64 << 20,
					 .segment = 8 << 20,
					 .hugepages = KV_HUGE_OFF,
					 .evict = "flru"};
	struct kv_cache *cache;
	int r;

	config.more[0] = getenv("KVFS_MORE");
	config.n_more = config.more[0] != NULL;
	snprintf(path, sizeof(path), "%s/store", directories[0]);
	r = kv_cache_open(&config, &cache, &why);
	if (r < 0) {
		printf("the store does not open: %s\n", why ? why : "?");
		return r;
	}
	for (const char *letter = "bcde"; *letter != '\0'; letter++)
		check_space(cache, *letter);
	r = save_one(cache);
	if (r < 0)
		printf("a save after the cut: %s\n", strerror(-r));
	kv_cache_close(cache);
	return r;
}

/* Run kvfs-fsck with @option; return its exit status. */
static int run_fsck(const char *option)
{
	char path[512];
	int status;
	pid_t pid;

	snprintf(path, sizeof(path), "%s/store", directories[0]);
	pid = fork();
	image_must(pid >= 0, "fork");
	if (pid == 0) {
		if (only < 0 && !freopen("/dev/null", "w", stdout))
			_exit(127);
		execl(fsck, fsck, "--quiet", option, path, NULL);
		_exit(127);
	}
	image_must(waitpid(pid, &status, 0) == pid, "waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Run kvfs-fsck on the store before another program opens it. */
static void let_fsck_look(unsigned number)
{
	char path[512];
	int status;

	snprintf(path, sizeof(path), "%s/store/store", directories[0]);
	remade = false;
	if (lies || number % 4 != 0 || access(path, F_OK) < 0)
		return;
	remade = number % 8 != 0;
	status = run_fsck(remade ? "--rebuild" : "--data");
	tally->looked += !remade;
	tally->remade += remade;
	if (status != 0 && status != 1) {
		printf("kvfs-fsck ends with %d\n", status);
		tally->doubted++;
	}
}

/* Check an image in a process of its own, which may die. */
static void check_image(const struct image *image, unsigned number)
{
	pid_t pid;
	int status;

	for (unsigned i = 0; i < disks; i++) {
		if (image_mount(image, i, type, directories[i]) == 0)
			continue;
		printf("the %s does not mount: %s\n", type, strerror(errno));
		tally->unmountable++;
		return;
	}
	fflush(stdout);
	let_fsck_look(number);
	pid = fork();
	image_must(pid >= 0, "fork");
	if (pid == 0) {
		alarm(PATIENCE);
		if (lies && only < 0 && !freopen("/dev/null", "w", stdout))
			_exit(1);
		status = check_store() < 0;
		fflush(stdout);
		_exit(status);
	}
	image_must(waitpid(pid, &status, 0) == pid, "waitpid");
	if (WIFSIGNALED(status)) {
		printf("opened, it died of signal %d\n", WTERMSIG(status));
		tally->died++;
	} else {
		tally->unopened += WEXITSTATUS(status) != 0;
	}
}

/* Set the journal to its state at the time when record @cut was logged. */
static void move_journal(const struct image_log *log, size_t *at, size_t cut)
{
	for (; *at < cut; ++*at) {
		const struct cut_record *r = log->record[*at];

		if (r->type == CUT_WORD && r->writer < JOURNAL_WRITERS &&
		    r->index < JOURNAL_ITEMS)
			atomic_store(&journal->word[r->writer][r->index],
				     r->at);
	}
}

static int by_value(const void *a, const void *b)
{
	const size_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Choose a record before which to cut the power: any write or flush; in half of
 * the cases a flush, before which most writes are in flight. */
static size_t choose_cut(const struct image_log *log, uint64_t *seed)
{
	size_t cut;

	do
		cut = log->first +
		      (size_t)client_random(seed, (long)(log->n - log->first));
	while (log->record[cut]->type == CUT_WORD);
	if (client_random(seed, 2) == 0)
		while (cut < log->n && log->record[cut]->type != CUT_FLUSH)
			cut++;
	return cut;
}

static size_t *choose_cuts(const struct image_log *log, unsigned n,
			   uint64_t seed)
{
	size_t *cuts = calloc(n + 1, sizeof(*cuts));

	image_must(cuts != NULL && log->n > log->first, "the log");
	for (unsigned i = 0; i < n; i++)
		cuts[i] = choose_cut(log, &seed);
	qsort(cuts, n, sizeof(*cuts), by_value);
	return cuts;
}

/* Return a record before which all writes to @disk survive a cut at record @cut: its
 * last flush, or an earlier record if the disk lies. */
static size_t surely(const struct image_maker *m, unsigned disk, size_t cut,
		     uint64_t *seed)
{
	size_t base = cut, forgotten;

	if (lies) {
		forgotten = (size_t)client_random(seed, LIE);
		base = cut - KV_MIN(forgotten, cut - m->log.first);
		return KV_MAX(base, m->base[disk]);
	}
	while (base > m->log.first &&
	       (m->log.record[base - 1]->type != CUT_FLUSH ||
		image_disk(m, m->log.record[base - 1]) != disk))
		base--;
	return base;
}

/* Return the number of broken promises.  A disk that lies may lose anything. */
static unsigned broken(void)
{
	unsigned n = (unsigned)journal->wrong + tally->strays + tally->died +
		     tally->doubted;

	if (!lies)
		n += (unsigned)(journal->lost + journal->damaged +
				journal->returned) +
		     tally->unmountable + tally->unopened;
	return n;
}

static void cut_all(struct image_maker *m, unsigned n, uint64_t seed)
{
	size_t *cuts = choose_cuts(&m->log, n, seed), at = 0;
	struct image image;

	for (unsigned i = 0; i < n; i++) {
		uint64_t own = content_mix(seed ^ i);
		unsigned bad = broken();

		move_journal(&m->log, &at, cuts[i]);
		for (unsigned disk = 0; disk < disks; disk++)
			image_advance(m, disk, surely(m, disk, cuts[i], &own));
		if (only >= 0 && (unsigned)only != i)
			continue;
		image_make(m, cuts[i], own, &image);
		check_image(&image, i);
		for (unsigned disk = 0; disk < disks; disk++)
			image_unmount(&image, disk, directories[disk]);
		close(image.memory);
		tally->images++;
		tally->unflushed += image.unflushed;
		if (broken() != bad)
			printf("image %u: records to %zu, then some to %zu of "
			       "%zu\n",
			       i, m->base[0], cuts[i], m->log.n);
	}
	free(cuts);
}

static void report(uint64_t seed)
{
	printf("%s%s%s: %u images: acknowledged %u lost %llu wrong %llu "
	       "damaged "
	       "%llu returned %llu strays %u; not mounted %u not opened %u "
	       "died %u; kvfs-fsck looked at %u and remade %u, doubted %u; "
	       "unflushed writes at the cut %.1f; seed %llu\n",
	       type, disks > 1 ? ", two disks" : "", lies ? ", lying disk" : "",
	       tally->images, tally->acknowledged,
	       (unsigned long long)journal->lost,
	       (unsigned long long)journal->wrong,
	       (unsigned long long)journal->damaged,
	       (unsigned long long)journal->returned, tally->strays,
	       tally->unmountable, tally->unopened, tally->died, tally->looked,
	       tally->remade, tally->doubted,
	       (double)tally->unflushed / KV_MAX(tally->images, 1),
	       (unsigned long long)seed);
}

static void *shared(size_t n)
{
	void *at = mmap(NULL, n, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	image_must(at != MAP_FAILED, "memory");
	return at;
}

int main(int argc, char **argv)
{
	struct image_maker maker;
	uint64_t seed;

	if (argc < 8)
		return 2;
	tally = shared(sizeof(*tally));
	journal = shared(sizeof(*journal));
	type = argv[3];
	directories[0] = argv[4];
	directories[1] = getenv("KVFS_SECOND");
	disks = directories[1] ? 2 : 1;
	seed = strtoull(argv[6], NULL, 0);
	fsck = argv[7];
	lies = argc > 8 && strcmp(argv[8], "lies") == 0;
	if (argc > 8 + lies)
		only = atoi(argv[8 + lies]);
	image_maker_open(&maker, argv[1], strtoull(argv[2], NULL, 0), disks);
	cut_all(&maker, (unsigned)atoi(argv[5]), seed);
	report(seed);
	return broken() != 0;
}
