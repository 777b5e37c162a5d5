/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - the stand-in's modules and kernels: the two kernels of the
 * plug-in, by the plug-in's own arithmetic, and the kernels of the tests.
 *
 * OWNS      the list of modules, each with its kernels.
 *
 * INVARIANTS
 *   (1) A kernel's parameters are read at its launch; the memory to which they
 *       point is read when the kernel runs.
 *   (2) The units of a launch run in another order than that of their numbers,
 *       as thread blocks may.
 *
 * LOCKING   big_lock for the counts.
 */
#include "kernels/device/scatter.h"
#include "tests/gpu/standin/standin.h"

/* A kernel that the stand-in implements. */
struct known {
	const char *name;
	size_t parameters; /* number of bytes of the kernel's only parameter */
	void (*run)(struct op *op);
};

#define N_KNOWN 6

struct CUfunc_st {
	const struct known *known;
	CUmodule module;
	struct kernel kernel; /* set when the module is loaded, then constant */
	bool launched;	      /* guarded by big_lock */
};

struct CUmod_st {
	struct CUmod_st *next; /* big_lock */
	CUcontext ctx;
	struct CUfunc_st functions[N_KNOWN];
};

static CUmodule modules; /* guarded by big_lock */

/* ---- kernels of the plug-in ---- */

/* Map the arrays' device addresses to their bytes. */
static bool take_arrays(struct kv_scatter_args *scatter)
{
	uint64_t blocks = scatter->units / scatter->block_units;
	uintptr_t sections = (uintptr_t)scatter->sections;
	uintptr_t pages = (uintptr_t)scatter->pages;

	if (!may_touch(sections,
		       scatter->n_sections * sizeof(struct kv_section),
		       "sections") ||
	    !may_touch(pages, blocks * scatter->pages_per_block * 8, "pages") ||
	    (scatter->blocks != NULL &&
	     !may_touch((uintptr_t)scatter->blocks, blocks * 8, "blocks")))
		return false;
	scatter->sections = bytes_at(sections);
	scatter->pages = bytes_at(pages);
	if (scatter->blocks != NULL)
		scatter->blocks = bytes_at((uintptr_t)scatter->blocks);
	return true;
}

static bool do_unit(const struct kv_unit *unit, bool gather)
{
	void *pool = bytes_at(unit->pool), *staging = bytes_at(unit->staging);

	if (!kernel_may_touch(unit->pool, unit->bytes, !gather,
			      "a kernel, in the pool,") ||
	    !kernel_may_touch(unit->staging, unit->bytes, gather,
			      "a kernel, in staging,"))
		return false;
	memcpy(gather ? staging : pool, gather ? pool : staging, unit->bytes);
	__atomic_add_fetch(&copied[1], unit->bytes, __ATOMIC_RELAXED);
	return true;
}

static void run_scatter_args(struct op *op, bool gather)
{
	struct kv_scatter_args scatter =
		*(struct kv_scatter_args *)op->parameters;
	uint32_t number, n;

	if (scatter.units == 0 || scatter.block_units == 0 ||
	    scatter.lanes == 0 || scatter.lanes > 32 ||
	    (scatter.lanes & (scatter.lanes - 1)) != 0 ||
	    scatter.units % scatter.block_units != 0) {
		break_device(bug(CU_ILLEGAL_ADDRESS,
				 "a launch of %u units by "
				 "%u lanes",
				 scatter.units, scatter.lanes));
		return;
	}
	if (!take_arrays(&scatter))
		return;
	for (n = 0; n < scatter.units; n++) {
		struct kv_unit unit;

		/* Run the units of the launch in reverse order. */
		number = scatter.units - 1 - n;
		unit = kv_scatter_unit(&scatter, number);
		if (unit.bytes > 0 && !do_unit(&unit, gather))
			return;
	}
}

static void run_scatter(struct op *op)
{
	run_scatter_args(op, false);
}

static void run_gather(struct op *op)
{
	run_scatter_args(op, true);
}

/* ---- kernels of the tests (kernels.ptx) ---- */

static void run_spin(struct op *op)
{
	struct timespec t;
	uint64_t ns = *(uint64_t *)op->parameters;

	t.tv_sec = (time_t)(ns / 1000000000u);
	t.tv_nsec = (long)(ns % 1000000000u);
	nanosleep(&t, NULL);
}

static void run_multiply(struct op *op)
{
	(void)op;
	usleep(200);
}

struct copy_args {
	uint64_t to, from, n;
};

static void run_copy(struct op *op)
{
	const struct copy_args *args = op->parameters;

	if (!kernel_may_touch(args->from, args->n, false, "a kernel's source"))
		return;
	if (kernel_may_touch(args->to, args->n, true, "a kernel's target"))
		memcpy(bytes_at(args->to), bytes_at(args->from), args->n);
}

struct sum_args {
	uint64_t array, bytes, sum;
};

static void run_sum(struct op *op)
{
	const struct sum_args *args = op->parameters;
	const uint64_t *array = bytes_at(args->array);
	uint64_t all = 0;

	if (!may_touch(args->array, op->value * 8, "an array of pages") ||
	    !may_touch(args->sum, 8, "a sum"))
		return;
	for (uint32_t i = 0; i < op->value; i++) {
		const uint64_t *words = bytes_at(array[i]);

		if (!kernel_may_touch(array[i], args->bytes, false, "a page"))
			return;
		for (uint64_t w = 0; w < args->bytes / 8; w++)
			all += words[w];
	}
	*(uint64_t *)bytes_at(args->sum) += all;
}

static const struct known known[N_KNOWN] = {
	{"kv_scatter", sizeof(struct kv_scatter_args), run_scatter},
	{"kv_gather", sizeof(struct kv_scatter_args), run_gather},
	{"test_spin", sizeof(uint64_t), run_spin},
	{"test_multiply", sizeof(uint64_t), run_multiply},
	{"test_copy", sizeof(struct copy_args), run_copy},
	{"test_sum", sizeof(struct sum_args), run_sum},
};

/* ---- calls ---- */

CUresult cuModuleLoadData(CUmodule *ret, const void *image)
{
	CUresult r = enter("cuModuleLoadData", CONTEXT);
	_cleanup_(context_release) CUcontext held = NULL;
	CUmodule module;
	unsigned i;

	if (r == CU_OK)
		r = image == NULL ? CU_INVALID_VALUE : image_check(image);
	if (r != CU_OK)
		return r;
	context_hold(SYNC_LOAD, &held);
	module = calloc(1, sizeof(*module));
	if (module == NULL)
		return CU_OUT_OF_MEMORY;
	module->ctx = current_context();
	for (i = 0; i < N_KNOWN; i++) {
		module->functions[i].known = &known[i];
		module->functions[i].module = module;
		image_kernel(image, known[i].name,
			     &module->functions[i].kernel);
	}
	pthread_mutex_lock(&big_lock);
	module->next = modules;
	modules = module;
	alive.modules++;
	pthread_mutex_unlock(&big_lock);
	*ret = module;
	return CU_OK;
}

/* Unload module @only, or (NULL) all modules of the context.  Return how many. */
static unsigned unload_locked(CUcontext ctx, CUmodule only)
{
	CUmodule *at = &modules, module;
	unsigned n = 0;

	while ((module = *at) != NULL) {
		if (only != NULL ? module != only : module->ctx != ctx) {
			at = &module->next;
			continue;
		}
		*at = module->next;
		alive.modules--;
		free(module);
		n++;
	}
	return n;
}

void modules_forget_locked(CUcontext ctx)
{
	(void)unload_locked(ctx, NULL);
}

CUresult cuModuleUnload(CUmodule module)
{
	CUresult r = enter("cuModuleUnload", CONTEXT);
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK)
		return r;
	context_hold(SYNC_LOAD, &held);
	pthread_mutex_lock(&big_lock);
	if (unload_locked(NULL, module) == 0)
		r = CU_INVALID_HANDLE;
	pthread_mutex_unlock(&big_lock);
	return r == CU_OK ? r : bug(r, "unloaded no module");
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module,
			     const char *name)
{
	CUresult r = enter("cuModuleGetFunction", CONTEXT);
	size_t i;

	if (r != CU_OK)
		return r;
	for (i = 0; i < N_KNOWN; i++)
		if (strcmp(known[i].name, name) == 0) {
			*function = &module->functions[i];
			return CU_OK;
		}
	return CU_NOT_FOUND;
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
	CUresult r = enter("cuFuncGetAttribute", CONTEXT);

	if (r != CU_OK)
		return r;
	switch (attribute) {
	case CU_FUNC_MAX_THREADS:
		*value = (int)function->kernel.max_threads;
		break;
	case CU_FUNC_LOCAL_BYTES:
		*value = (int)function->kernel.local;
		break;
	case CU_FUNC_REGISTERS:
		*value = (int)function->kernel.registers;
		break;
	default:
		*value = 0;
	}
	return CU_OK;
}

/* Return whether a multiprocessor has enough registers for the launch: it has
 * 64 Ki, and each warp takes a multiple of 256. */
static bool fits(const struct kernel *kernel, uint64_t threads)
{
	uint64_t warps = (threads + 31) / 32;
	uint64_t a_warp = (kernel->registers * 32u + 255) / 256 * 256;

	return (warps + 3) / 4 * 4 * a_warp <= 65536;
}

/* Return whether the kernel's module is still loaded. */
static bool is_loaded(CUfunction function)
{
	CUmodule module;

	pthread_mutex_lock(&big_lock);
	for (module = modules; module != NULL; module = module->next)
		if (function >= module->functions &&
		    function < module->functions + N_KNOWN)
			break;
	pthread_mutex_unlock(&big_lock);
	return module != NULL;
}

/* Lazy loading: the first launch of a kernel loads it onto the device. */
static void hold_at_first(CUfunction function, CUcontext *ret_held)
{
	bool first;

	pthread_mutex_lock(&big_lock);
	first = !function->launched;
	function->launched = true;
	pthread_mutex_unlock(&big_lock);
	if (first)
		context_hold(SYNC_LAUNCH, ret_held);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
			unsigned grid_z, unsigned block_x, unsigned block_y,
			unsigned block_z, unsigned shared, CUstream stream,
			void **parameters, void **extra)
{
	CUresult r = enter("cuLaunchKernel", CONTEXT);
	uint64_t threads = (uint64_t)block_x * block_y * block_z;
	_cleanup_(context_release) CUcontext held = NULL;
	struct op *op;

	(void)shared;
	if (r != CU_OK)
		return r;
	if (!is_loaded(function))
		return bug(CU_INVALID_HANDLE, "launched no kernel");
	if (parameters == NULL || extra != NULL || threads == 0 ||
	    threads > function->kernel.max_threads || grid_x == 0 ||
	    grid_y == 0 || grid_z == 0)
		return CU_INVALID_VALUE;
	if (function->module->ctx != current_context() ||
	    context_of_stream(stream) != current_context())
		return CU_INVALID_HANDLE;
	if (!fits(&function->kernel, threads))
		return CU_OUT_OF_RESOURCES;
	hold_at_first(function, &held);
	op = op_new(function->known->run);
	op->is_work = true;
	op->value = grid_x;
	op->parameters_bytes = function->known->parameters;
	op->parameters = malloc(op->parameters_bytes);
	if (op->parameters == NULL)
		abort();
	memcpy(op->parameters, parameters[0], op->parameters_bytes);
	return give(stream, op, NULL);
}
