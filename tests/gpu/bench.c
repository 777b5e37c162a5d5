/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.c - the cost of loads and saves to a GPU, compared in turn with one
 * pinned cuMemcpyAsync of as many bytes.
 *
 *   bench WAY JSON [quick]   WAY: registered, staged or rw
 *   bench harm JSON [quick]  slowdown of kernels by loads and by registering
 *   bench probe              exit status 0 if there is a GPU
 *   bench plugin             exit status 0 if the plug-in can be loaded
 *
 * With the stand-in driver the figures have no meaning: the run is a test.
 * With a real driver, staged and rw need one that does not register read-only
 * memory (denied.c).
 *
 * OWNS      its daemon, its report.
 *
 * LOCKING   none: the loads beside a kernel have a thread of their own.
 */
#include <stdatomic.h>
#include <sys/mman.h>

#include "kernels/device/device.h"
#include "tests/gpu/bench.h"

static struct dims qwen3 = {36, 8, 128, 16};
static unsigned rounds = 9, multiplies = 1500, n_layouts = 3;
static const char *way;
static struct kv_bench_report *report;
static struct world *world;

/* Layouts, and the goals of loads and saves through registered memory. */
static const struct {
	const char *name;
	unsigned shape;
	uint64_t stride; /* bytes */
	double load, save, by_layer;
} layouts[] = {
	{"contiguous", 0, 2359296, 0.95, 0.90, 0.90},
	{"32k", 2, 32768, 0.90, 0.85, 0.90},
	{"4k", 7, 4096, 0.80, 0.75, 0.80},
};

static bool is_staged(void)
{
	return strcmp(way, "staged") == 0;
}

/* Add to the report how fast @bytes were moved in @seconds, and the time of the
 * reference copy. */
static void add(const char *what, const char *layout, uint64_t bytes,
		struct kv_bench_sample *seconds,
		struct kv_bench_sample *reference, double asked)
{
	char name[64];
	double s = kv_bench_sample_median(seconds);
	double r = kv_bench_sample_median(reference);
	struct kv_bench_figure figure = {
		.name = name,
		.value = (double)bytes / s / 1e9,
		.reference = (double)bytes / r / 1e9,
		.unit = "GB/s",
		.against = "one pinned cuMemcpyAsync",
		.least_ratio = is_staged() && asked > 0.6 ? 0.6 : asked,
	};

	snprintf(name, sizeof(name), "gpu_%s_%s_%s", what, layout, way);
	kv_bench_report_add(report, &figure);
}

static void note_pool(struct engine *e, double cpu, uint64_t bytes)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	if (kvfs_pool_info(e->pool, &info) < 0)
		return;
	kv_bench_report_note(report,
			     "%s (%s); %lu threads, %.3f s of processors a "
			     "GB, daemon's included",
			     info.path, info.reason, info.threads,
			     cpu * 1e9 / (double)bytes);
}

/* Wait until the library has registered all memory, or has failed to. */
static void settle(struct engine *e)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};
	uint64_t before = UINT64_MAX;
	unsigned i;

	for (i = 0; i < 600; i++) {
		if (kvfs_pool_info(e->pool, &info) < 0 ||
		    info.bytes_registered + info.bytes_refused == before)
			return;
		before = info.bytes_registered + info.bytes_refused;
		usleep(200000);
	}
}

static double load_once(struct engine *e, kvfs_lease *lease,
			const int64_t *pages, uint32_t flags)
{
	uint64_t start = kv_now_ns();
	kvfs_xfer *xfer;

	assert_int_equal(kvfs_load(e->pool, lease, BLOCKS, pages,
				   KVFS_OPTS(.flags = flags), &xfer),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 BLOCKS);
	kvfs_xfer_free(xfer);
	return (double)(kv_now_ns() - start) / 1e9;
}

/* Measure CUDA's other ways to copy the bytes of a load to the device. */
static void bench_others(struct engine *e, struct reference *ref, unsigned l,
			 struct kv_bench_sample *one)
{
	_cleanup_(sample_fini) struct kv_bench_sample each = {0};
	_cleanup_(sample_fini) struct kv_bench_sample batch = {0};
	_cleanup_(sample_fini) struct kv_bench_sample kernel = {0};
	uint64_t stride = KV_MIN(layouts[l].stride, e->shape.block);
	double batched = reference_batch(ref, stride);
	unsigned i;

	reference_kernel(ref);
	for (i = 0; i < KV_MIN(rounds, 3); i++) {
		kv_bench_sample_add(&each, reference_copy(ref, true, stride));
		kv_bench_sample_add(&kernel, reference_kernel(ref));
		if (batched >= 0)
			kv_bench_sample_add(&batch,
					    reference_batch(ref, stride));
	}
	add("copy_by_piece", layouts[l].name, ref->bytes, &each, one, 0);
	add("zero_copy_kernel", layouts[l].name, ref->bytes, &kernel, one, 0);
	if (batched >= 0)
		add("copy_batch", layouts[l].name, ref->bytes, &batch, one, 0);
	else
		kv_bench_report_note(report, "no cuMemcpyBatchAsync: a driver "
					     "before 12.8");
}

static void bench_load_as(struct engine *e, struct reference *ref, unsigned l,
			  const int64_t *pages, kvfs_lease *lease,
			  uint32_t flags, struct kv_bench_sample *one)
{
	_cleanup_(sample_fini) struct kv_bench_sample seconds = {0};
	double cpu = 0, before;
	unsigned i;

	load_once(e, lease, pages, flags);
	settle(e);
	for (i = 0; i < rounds; i++) {
		kv_bench_sample_add(one, reference_copy(ref, true, ref->bytes));
		before = processors(world->daemon);
		kv_bench_sample_add(&seconds,
				    load_once(e, lease, pages, flags));
		cpu += processors(world->daemon) - before;
	}
	add(flags == 0 ? "load" : "load_by_layer", layouts[l].name, ref->bytes,
	    &seconds, one, flags == 0 ? layouts[l].load : layouts[l].by_layer);
	note_pool(e, cpu, rounds * ref->bytes);
}

static void bench_load(struct engine *e, struct reference *ref, unsigned l,
		       const int64_t *pages)
{
	_cleanup_(sample_fini) struct kv_bench_sample one = {0};
	kvfs_lease *lease = engine_acquire(e, BLOCKS);

	bench_load_as(e, ref, l, pages, lease, 0, &one);
	bench_load_as(e, ref, l, pages, lease, KVFS_BY_LAYER, &one);
	if (strcmp(way, "registered") == 0)
		bench_others(e, ref, l, &one);
	kvfs_release(lease);
}

/* Save all blocks once.  Return the seconds until COPIED and until SEALED. */
static void save_once(struct engine *e, const int64_t *pages,
		      double *ret_copied, double *ret_sealed)
{
	kvfs_key *keys = engine_keys(BLOCKS);
	kvfs_xfer *xfer;
	uint64_t start;

	assert_int_equal(kvfs_space_clear(e->space), 0);
	start = kv_now_ns();
	assert_int_equal(kvfs_save(e->pool, e->space, keys, NULL, BLOCKS, pages,
				   NULL, &xfer),
			 0);
	kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND);
	*ret_copied = (double)(kv_now_ns() - start) / 1e9;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND),
			 BLOCKS);
	*ret_sealed = (double)(kv_now_ns() - start) / 1e9;
	kvfs_xfer_free(xfer);
	free(keys);
}

static void bench_save(struct engine *e, struct reference *ref, unsigned l,
		       const int64_t *pages)
{
	_cleanup_(sample_fini) struct kv_bench_sample copied = {0};
	_cleanup_(sample_fini) struct kv_bench_sample sealed = {0};
	_cleanup_(sample_fini) struct kv_bench_sample one = {0};
	_cleanup_(sample_fini) struct kv_bench_sample each = {0};
	double cpu = 0, before, c, s;
	unsigned i;

	save_once(e, pages, &c, &s);
	settle(e);
	for (i = 0; i < rounds; i++) {
		kv_bench_sample_add(&one,
				    reference_copy(ref, false, ref->bytes));
		before = processors(world->daemon);
		save_once(e, pages, &c, &s);
		cpu += processors(world->daemon) - before;
		kv_bench_sample_add(&copied, c);
		kv_bench_sample_add(&sealed, s);
	}
	add("save", layouts[l].name, ref->bytes, &copied, &one,
	    layouts[l].save);
	note_pool(e, cpu, rounds * ref->bytes);
	add("save_sealed", layouts[l].name, ref->bytes, &sealed, &one, 0);
	kv_bench_sample_add(&each, reference_copy(ref, false,
						  KV_MIN(layouts[l].stride,
							 e->shape.block)));
	add("save_by_piece", layouts[l].name, ref->bytes, &each, &one, 0);
}

/* ---- slowing a kernel that runs all the time ---- */

#define MATRIX 1024u
/* number of bytes that a kernel copies on the device */
#define STRETCH (64ull << 20)

/* Work that a thread does while the kernel runs. */
struct beside {
	struct engine *e;
	const int64_t *pages;
	uint32_t flags;
	uint8_t *memory; /* memory to register repeatedly */
	uint64_t bytes;
	atomic_bool stop;
	uint64_t times;
};

static void *load_on(void *arg)
{
	struct beside *beside = arg;
	kvfs_lease *lease;

	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	lease = engine_acquire(beside->e, BLOCKS);
	while (!atomic_load(&beside->stop)) {
		load_once(beside->e, lease, beside->pages, beside->flags);
		beside->times++;
	}
	kvfs_release(lease);
	return NULL;
}

static void *register_on(void *arg)
{
	struct beside *beside = arg;

	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	while (!atomic_load(&beside->stop)) {
		GPU_OK(cuMemHostRegister_v2, beside->memory, beside->bytes,
		       CU_REGISTER_PORTABLE | CU_REGISTER_MAPPED);
		GPU_OK(cuMemHostUnregister, beside->memory);
		beside->times++;
	}
	return NULL;
}

/* Measure the milliseconds of each kernel by the device's clock.  Return the
 * longest time that the host needed to launch one, in milliseconds. */
static double run_kernels(bool compute, CUdeviceptr memory,
			  struct kv_bench_sample *ms)
{
	uint64_t start, longest = 0;
	unsigned grid = MATRIX / 16, n = MATRIX, i;
	void *parameters[] = {&memory, &n};
	CUstream stream = gpu_stream();
	CUevent begin, end;
	float took;

	GPU_OK(cuEventCreate, &begin, 0);
	GPU_OK(cuEventCreate, &end, 0);
	for (i = 0; i < multiplies; i++) {
		start = kv_now_ns();
		GPU_OK(cuEventRecord, begin, stream);
		if (compute)
			GPU_OK(cuLaunchKernel, gpu.multiply, grid, grid, 1, 16,
			       16, 1, 0, stream, parameters, NULL);
		else
			gpu_copy(stream, 1024, memory, memory + STRETCH,
				 STRETCH);
		GPU_OK(cuEventRecord, end, stream);
		longest = KV_MAX(longest, kv_now_ns() - start);
		GPU_OK(cuEventSynchronize, end);
		GPU_OK(cuEventElapsedTime, &took, begin, end);
		if (i >= multiplies / 30)
			kv_bench_sample_add(ms, (double)took);
	}
	GPU_OK(cuEventDestroy_v2, begin);
	GPU_OK(cuEventDestroy_v2, end);
	GPU_OK(cuStreamDestroy_v2, stream);
	return (double)longest / 1e6;
}

static void report_harm(const char *what, struct kv_bench_sample *alone,
			struct kv_bench_sample *beside, double bytes,
			double seconds, double launch)
{
	double p99 = kv_bench_sample_percentile(beside, 99);
	double p99_alone = kv_bench_sample_percentile(alone, 99);
	char name[64];
	struct kv_bench_figure figure = {
		.name = name,
		.value = p99,
		.reference = p99_alone,
		.unit = "ms",
		.against = "the same with nothing beside it",
		/* the kernel may take at most 5 % longer */
		.least_ratio = 1 / 1.05,
	};

	snprintf(name, sizeof(name), "gpu_harm_p99_%s", what);
	kv_bench_report_add(report, &figure);
	kv_bench_report_note(
		report,
		"p50 %.4f ms, alone %.4f; %.1f GB/s beside it; longest launch "
		"%.2f ms",
		kv_bench_sample_median(beside), kv_bench_sample_median(alone),
		bytes / seconds / 1e9, launch);
}

static void bench_harm(const char *what, bool compute, struct beside *beside,
		       void *(*run)(void *arg))
{
	_cleanup_(sample_fini) struct kv_bench_sample alone = {0};
	_cleanup_(sample_fini) struct kv_bench_sample with = {0};
	CUdeviceptr memory = gpu_alloc(2 * STRETCH);
	pthread_t thread;
	uint64_t start;
	double seconds, launch;

	GPU_OK(cuMemsetD8Async, memory, 0, 2 * STRETCH, CU_LEGACY);
	GPU_OK(cuCtxSynchronize);
	(void)run_kernels(compute, memory, &alone);
	atomic_store(&beside->stop, false);
	beside->times = 0;
	assert_int_equal(pthread_create(&thread, NULL, run, beside), 0);
	usleep(50000);
	start = kv_now_ns();
	launch = run_kernels(compute, memory, &with);
	seconds = (double)(kv_now_ns() - start) / 1e9;
	atomic_store(&beside->stop, true);
	pthread_join(thread, NULL);
	report_harm(what, &alone, &with,
		    (double)(beside->times * beside->bytes), seconds, launch);
	gpu_free(memory);
}

static void bench_all_harm(void)
{
	uint64_t pages = BLOCKS + BLOCKS / 4;
	int64_t *to = engine_pages(BLOCKS, pages, 2);
	struct beside beside = {.pages = to};
	struct engine e;

	engine_open(&e, world, "cuda", &shapes[layouts[1].shape], &qwen3,
		    pages);
	engine_fill(&e, 1);
	engine_save(&e, BLOCKS, to, KVFS_SEALED);
	settle(&e);
	beside.e = &e;
	beside.bytes = BLOCKS * e.shape.block;
	bench_harm("compute_load", true, &beside, load_on);
	bench_harm("bandwidth_load", false, &beside, load_on);
	beside.flags = KVFS_BY_LAYER;
	bench_harm("compute_load_by_layer", true, &beside, load_on);
	bench_harm("bandwidth_load_by_layer", false, &beside, load_on);
	/* number of bytes that the plug-in registers at once */
	beside.bytes = 16ull << 20;
	beside.memory = mmap(NULL, beside.bytes, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(beside.memory, MAP_FAILED);
	memset(beside.memory, 1, beside.bytes);
	bench_harm("compute_register", true, &beside, register_on);
	bench_harm("bandwidth_register", false, &beside, register_on);
	munmap(beside.memory, beside.bytes);
	engine_close(&e);
	free(to);
}

/* ---- loads and saves in one layout ---- */

static void bench_layout(unsigned l)
{
	uint64_t pages = BLOCKS + BLOCKS / 4;
	int64_t *from = engine_pages(BLOCKS, pages, 1);
	int64_t *to = engine_pages(BLOCKS, pages, 2);
	struct reference ref;
	struct engine e;

	engine_open(&e, world, "cuda", &shapes[layouts[l].shape], &qwen3,
		    pages);
	reference_open(&ref, BLOCKS * e.shape.block);
	engine_fill(&e, l + 1);
	bench_save(&e, &ref, l, from);
	bench_load(&e, &ref, l, to);
	reference_close(&ref);
	engine_close(&e);
	free(from);
	free(to);
}

/* ---- registering much memory ---- */

/* Save @n groups of BLOCKS blocks, which stay in the daemon's arena. */
static void fill(struct engine *e, unsigned n, const int64_t *pages)
{
	kvfs_key *keys = calloc(BLOCKS, sizeof(*keys));
	kvfs_xfer *xfer;
	unsigned i, k;

	for (i = 0; i < n; i++) {
		for (k = 0; k < BLOCKS; k++)
			keys[k] = world_key(i * BLOCKS + k);
		assert_int_equal(kvfs_save(e->pool, e->space, keys, NULL,
					   BLOCKS, pages, NULL, &xfer),
				 0);
		kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND);
		kvfs_xfer_free(xfer);
	}
	free(keys);
}

/* Return the time from @start until each piece of memory is registered or
 * refused. */
static double wait_registered(struct engine *e, uint64_t bytes, uint64_t start)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};
	unsigned i;

	for (i = 0; i < 12000; i++) {
		if (kvfs_pool_info(e->pool, &info) < 0 ||
		    info.bytes_registered + info.bytes_refused >= bytes)
			break;
		usleep(10000);
	}
	return (double)(kv_now_ns() - start) / 1e9;
}

static void report_register(uint64_t bytes, double all, double first,
			    double later)
{
	char name[64];
	struct kv_bench_figure figure = {
		.name = name,
		.value = all * 1e3,
		.unit = "ms",
	};

	snprintf(name, sizeof(name), "gpu_register_%luM_%s", bytes >> 20, way);
	kv_bench_report_add(report, &figure);
	kv_bench_report_note(report,
			     "the first load meanwhile took %.1f ms, later "
			     "ones %.1f",
			     first * 1e3, later * 1e3);
}

/* Open a client while the daemon's arena is full of blocks: the client leases
 * all of them, which maps the whole arena, and begins to load immediately. */
static void bench_register(void)
{
	uint64_t bytes = memory_to_register();
	unsigned n = (unsigned)KV_MAX(1, bytes / (BLOCKS * 2359296ull));
	int64_t *pages = engine_pages(BLOCKS, BLOCKS, 1);
	kvfs_lease *lease;
	struct engine e;
	double first, all;
	uint64_t start;

	engine_open(&e, world, "cuda", &shapes[0], &qwen3, BLOCKS);
	fill(&e, n, pages);
	/* Close the pool, so that a new session has no mapped memory. */
	kvfs_pool_close(e.pool);
	kvfs_space_close(e.space);
	kvfs_close(e.session);
	assert_int_equal(kvfs_open(world->path, &e.session), 0);
	world_wait_connected(e.session, 1);
	snprintf(world->space_name, sizeof(world->space_name), "e%u",
		 world->spaces - 1);
	assert_int_equal(kvfs_space_open(e.session, world->space_name, NULL, 0,
					 &e.space),
			 0);
	assert_int_equal(engine_register(&e), 0);
	start = kv_now_ns();
	lease = engine_acquire(&e, (size_t)n * BLOCKS);
	first = load_once(&e, lease, pages, 0);
	all = wait_registered(&e, n * BLOCKS * e.shape.block, start);
	report_register(n * BLOCKS * e.shape.block, all, first,
			load_once(&e, lease, pages, 0));
	kvfs_release(lease);
	engine_close(&e);
	free(pages);
}

/* ---- the run ---- */

static void begin_world(uint64_t dram)
{
	char *options;

	if (asprintf(&options, "dram=%luM,ssd=0,scrub=0%s%s", dram >> 20,
		     strcmp(way, "rw") == 0 ? ",arena=rw" : "",
		     gpu_is_real() ? "" : ",hugepages=off") < 0 ||
	    world_begin((void **)&world, options) < 0)
		exit(1);
}

static void end_world(void)
{
	char *options = (char *)world->options;

	world_group_teardown((void **)&world);
	world = NULL;
	free(options);
}

static void say_where(void)
{
	time_t now = time(NULL);
	char date[32];

	strftime(date, sizeof(date), "%Y-%m-%d", gmtime(&now));
	if (!gpu_is_real())
		puts("THE STAND-IN DRIVER: these figures mean nothing, only "
		     "that the run ends");
	printf("%s, %ld processors, %s: %u blocks of %.2f MiB\n", date,
	       sysconf(_SC_NPROCESSORS_ONLN), way, BLOCKS,
	       (double)qwen3.layers / 16);
}

static int probe(void)
{
	char name[128] = "";

	if (gpu_open() < 0) {
		fputs("no NVIDIA GPU here: the driver finds none\n", stderr);
		return 1;
	}
	GPU_OK(cuDeviceGetName, name, sizeof(name), 0);
	puts(name);
	return 0;
}

/* Return 0 if the plug-in works; else libkvfs prints the reason. */
static int plugin(void)
{
	return kv_device_find("cuda") == NULL;
}

/* Run the measurements as a cmocka test, so that cmocka prints failed
 * assertions. */
static void run(void **state)
{
	unsigned l;

	(void)state;
	begin_world(gpu_is_real() ? 4ull << 30 : 512ull << 20);
	if (strcmp(way, "harm") == 0) {
		bench_all_harm();
		end_world();
		return;
	}
	for (l = 0; l < n_layouts; l++)
		bench_layout(l);
	end_world();
	begin_world(memory_to_register() / 8 * 9 + (512ull << 20));
	bench_register();
	end_world();
}

static bool is_way(const char *name)
{
	static const char *const ways[] = {"registered", "staged", "rw",
					   "harm"};
	size_t i;

	for (i = 0; i < KV_ARRAY_LEN(ways); i++)
		if (strcmp(name, ways[i]) == 0)
			return true;
	return false;
}

static int run_ended(void **state)
{
	(void)state;
	if (world != NULL)
		end_world();
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest runs[] = {
		cmocka_unit_test_teardown(run, run_ended)};
	int failed;

	gpu_begin(argv);
	if (argc == 2 && strcmp(argv[1], "probe") == 0)
		return probe();
	if (argc == 2 && strcmp(argv[1], "plugin") == 0)
		return plugin();
	if (argc < 3 || argc > 4 || !is_way(argv[1]) ||
	    (argc == 4 && strcmp(argv[3], "quick") != 0)) {
		fputs("usage: bench registered|staged|rw|harm JSON [quick]\n",
		      stderr);
		return 2;
	}
	way = argv[1];
	if (argc == 4) {
		qwen3.layers = 2;
		rounds = 1;
		multiplies = 30;
		n_layouts = strcmp(way, "registered") == 0 ? 3 : 1;
	}
	if (probe() != 0)
		return 1;
	/* Make the stand-in behave like the driver for which this way
	 * (registered, staged or rw) exists. */
	gpu_set(is_staged() || strcmp(way, "rw") == 0 ? "readonly=0"
						      : "readonly=1");
	gpu_set("delay=0");
	say_where();
	if (kv_bench_report_new(argv[2], NULL, &report) < 0)
		return 1;
	failed = cmocka_run_group_tests_name(way, runs, NULL, NULL);
	return kv_bench_report_close(report) < 0 || failed != 0;
}
