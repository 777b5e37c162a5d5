/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - the stand-in's modules, and the kernels that it knows: the two of
 * the plug-in, by their own arithmetic, and those of the tests.
 *
 * OWNS      modules.  An image is not looked into.
 *
 * INVARIANTS
 *   (1) A kernel's parameters are taken at its launch; what they point to is
 *       read when it runs.
 *   (2) Units of a launch are done in an order of their own, as blocks are.
 *
 * LOCKING   big_lock for the counts.
 */
#include "kernels/device/scatter.h"
#include "tests/gpu/standin/standin.h"

struct CUmod_st {
	const void *image;
};

struct CUfunc_st {
	const char *name;
	size_t parameters; /* bytes of the first one, the only one */
	void (*run)(struct op *op);
};

/* ---- the plug-in's ---- */

/* The arrays are the device's: read them where their bytes are. */
static bool take_arrays(struct kv_scatter_args *scatter)
{
	uint64_t blocks = scatter->units / scatter->block_units;
	uintptr_t sections = (uintptr_t)scatter->sections;
	uintptr_t pages = (uintptr_t)scatter->pages;

	if (!may_touch(sections,
		       scatter->n_sections * sizeof(struct kv_section),
		       "sections") ||
	    !may_touch(pages, blocks * scatter->pages_per_block * 8, "pages"))
		return false;
	scatter->sections = bytes_at(sections);
	scatter->pages = bytes_at(pages);
	return true;
}

static bool do_unit(const struct kv_unit *unit, bool gather)
{
	void *pool = bytes_at(unit->pool), *staging = bytes_at(unit->staging);

	if (!may_touch(unit->pool, unit->bytes, "a kernel, in the pool,") ||
	    !may_touch(unit->staging, unit->bytes, "a kernel, in staging,"))
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

		/* The last ones first. */
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

/* ---- the tests' (kernels.ptx) ---- */

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

static struct CUfunc_st functions[] = {
	{"kv_scatter", sizeof(struct kv_scatter_args), run_scatter},
	{"kv_gather", sizeof(struct kv_scatter_args), run_gather},
	{"test_spin", sizeof(uint64_t), run_spin},
	{"test_multiply", sizeof(uint64_t), run_multiply},
};

/* ---- calls ---- */

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	CUresult r = enter("cuModuleLoadData", CONTEXT);

	if (r != CU_OK)
		return r;
	if (image == NULL)
		return CU_INVALID_VALUE;
	*module = calloc(1, sizeof(**module));
	if (*module == NULL)
		return CU_OUT_OF_MEMORY;
	(*module)->image = image;
	pthread_mutex_lock(&big_lock);
	alive.modules++;
	pthread_mutex_unlock(&big_lock);
	return CU_OK;
}

CUresult cuModuleUnload(CUmodule module)
{
	CUresult r = enter("cuModuleUnload", CONTEXT);

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	alive.modules--;
	pthread_mutex_unlock(&big_lock);
	free(module);
	return CU_OK;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module,
			     const char *name)
{
	CUresult r = enter("cuModuleGetFunction", CONTEXT);
	size_t i;

	(void)module;
	if (r != CU_OK)
		return r;
	for (i = 0; i < KV_ARRAY_LEN(functions); i++)
		if (strcmp(functions[i].name, name) == 0) {
			*function = &functions[i];
			return CU_OK;
		}
	return CU_NOT_FOUND;
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
	CUresult r = enter("cuFuncGetAttribute", CONTEXT);

	(void)attribute;
	(void)function;
	*value = 0;
	return r;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
	(void)function;
	(void)attribute;
	(void)value;
	return enter("cuFuncSetAttribute", CONTEXT);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
			unsigned grid_z, unsigned block_x, unsigned block_y,
			unsigned block_z, unsigned shared, CUstream stream,
			void **parameters, void **extra)
{
	CUresult r = enter("cuLaunchKernel", CONTEXT);
	uint64_t threads = (uint64_t)block_x * block_y * block_z;
	struct op *op;

	(void)shared;
	if (r != CU_OK)
		return r;
	if (function == NULL || parameters == NULL || extra != NULL ||
	    threads == 0 || threads > 1024 || grid_x == 0 || grid_y == 0 ||
	    grid_z == 0)
		return CU_INVALID_VALUE;
	op = op_new(function->run);
	op->is_work = true;
	op->parameters = malloc(function->parameters);
	if (op->parameters == NULL)
		abort();
	memcpy(op->parameters, parameters[0], function->parameters);
	return give(stream, op, NULL);
}
