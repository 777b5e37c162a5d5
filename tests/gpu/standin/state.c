/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - the stand-in's settings, faults on demand, and what went wrong.
 *
 * OWNS      the settings, the faults to come, and the counts of calls and bugs.
 *
 * INVARIANTS
 *   (1) A device that an operation broke answers every later call with that
 *       operation's error, as a real one does.
 *   (2) Settings change between tests only, when nothing is under way.
 *
 * LOCKING   a lock of its own, a leaf.
 */
#include <stdarg.h>
#include <stdio.h>

#include "tests/gpu/standin/standin.h"

#define MAX_CALLS 128
#define MAX_FAULTS 8

struct settings settings = {
	.delay_us = 100,
	.seed = 1,
	.devices = 1,
	.read_only = true,
	.mem_ops = true,
	.pageable = true,
	.memory = 8ull << 30,
};
pthread_mutex_t big_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
__thread bool in_host_function;
uint64_t copied[2];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	const char *name;
	uint64_t n;
} calls[MAX_CALLS]; /* lock */
static struct {
	char call[48];
	unsigned in; /* calls; 0: free */
	CUresult code;
} faults[MAX_FAULTS];	  /* lock */
static uint64_t bugs;	  /* lock */
static CUresult broken;	  /* lock */
static pid_t initialised; /* lock; 0: not yet */
static __thread CUcontext current[8];
static __thread unsigned depth;

/* ---- settings ---- */

static int add_fault(const char *text)
{
	char call[48];
	unsigned in, i;
	int code;

	if (sscanf(text, "%47[A-Za-z0-9_]:%u:%d", call, &in, &code) != 3)
		return -1;
	for (i = 0; i < MAX_FAULTS; i++)
		if (faults[i].in == 0) {
			strcpy(faults[i].call, call);
			faults[i].in = in;
			faults[i].code = code;
			return 0;
		}
	return -1;
}

static int set_one_locked(const char *name, const char *value)
{
	unsigned long n = strtoul(value, NULL, 10);

	if (strcmp(name, "delay") == 0)
		__atomic_store_n(&settings.delay_us, (unsigned)n,
				 __ATOMIC_RELAXED);
	else if (strcmp(name, "seed") == 0)
		settings.seed = (unsigned)n;
	else if (strcmp(name, "devices") == 0)
		settings.devices = (int)n;
	else if (strcmp(name, "readonly") == 0)
		settings.read_only = n != 0;
	else if (strcmp(name, "memops") == 0)
		settings.mem_ops = n != 0;
	else if (strcmp(name, "pageable") == 0)
		settings.pageable = n != 0;
	else if (strcmp(name, "memory") == 0)
		settings.memory = n;
	else if (strcmp(name, "fail") == 0)
		return add_fault(value);
	else
		return -1;
	return settings.devices <= MAX_DEVICES ? 0 : -1;
}

int standin_set(const char *text)
{
	char *copy = strdup(text), *save = NULL, *word, *value;
	int r = 0;

	pthread_mutex_lock(&lock);
	for (word = strtok_r(copy, ",", &save); word != NULL && r == 0;
	     word = strtok_r(NULL, ",", &save)) {
		value = strchr(word, '=');
		if (value == NULL) {
			r = -1;
			break;
		}
		*value++ = '\0';
		r = set_one_locked(word, value);
	}
	pthread_mutex_unlock(&lock);
	free(copy);
	return r;
}

/* ---- what went wrong ---- */

CUresult bug(CUresult code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	pthread_mutex_lock(&lock);
	bugs++;
	fputs("stand-in driver: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	pthread_mutex_unlock(&lock);
	va_end(args);
	return code;
}

void break_device(CUresult code)
{
	pthread_mutex_lock(&lock);
	if (broken == CU_OK)
		broken = code;
	pthread_mutex_unlock(&lock);
}

uint64_t standin_bugs(void)
{
	uint64_t n;

	pthread_mutex_lock(&lock);
	n = bugs;
	pthread_mutex_unlock(&lock);
	return n;
}

void standin_forgive(void)
{
	pthread_mutex_lock(&lock);
	bugs = 0;
	broken = CU_OK;
	memset(faults, 0, sizeof(faults));
	pthread_mutex_unlock(&lock);
}

uint64_t standin_calls(const char *call)
{
	uint64_t n = 0;
	unsigned i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < MAX_CALLS && calls[i].name != NULL; i++)
		if (strcmp(calls[i].name, call) == 0)
			n = calls[i].n;
	pthread_mutex_unlock(&lock);
	return n;
}

uint64_t standin_copied(bool by_kernel)
{
	return __atomic_load_n(&copied[by_kernel], __ATOMIC_RELAXED);
}

/* ---- every call ---- */

static void count_locked(const char *call)
{
	unsigned i;

	for (i = 0; i < MAX_CALLS; i++) {
		if (calls[i].name == NULL)
			calls[i].name = call;
		if (strcmp(calls[i].name, call) == 0) {
			calls[i].n++;
			return;
		}
	}
}

static CUresult fault_locked(const char *call)
{
	unsigned i;

	for (i = 0; i < MAX_FAULTS; i++)
		if (faults[i].in > 0 && strcmp(faults[i].call, call) == 0 &&
		    --faults[i].in == 0)
			return faults[i].code;
	return CU_OK;
}

CUresult enter(const char *call, enum needs needs)
{
	CUresult r;
	pid_t owner;

	pthread_mutex_lock(&lock);
	count_locked(call);
	r = fault_locked(call);
	owner = initialised;
	if (r == CU_OK && needs != NOTHING)
		r = broken;
	pthread_mutex_unlock(&lock);
	if (in_host_function)
		return bug(CU_NOT_PERMITTED, "%s in a host function", call);
	if (r != CU_OK || needs == NOTHING)
		return r;
	if (owner == 0)
		return CU_NOT_INITIALIZED;
	if (owner != getpid())
		return bug(CU_NOT_INITIALIZED, "%s after a fork", call);
	if (needs == CONTEXT && (depth == 0 || current[depth - 1] == NULL))
		return CU_INVALID_CONTEXT;
	if (needs == CONTEXT && !context_is_live(current[depth - 1]))
		return bug(CU_INVALID_CONTEXT, "%s: the context is gone", call);
	return CU_OK;
}

CUcontext current_context(void)
{
	return current[depth - 1];
}

CUresult cuInit(unsigned flags)
{
	const char *text = getenv("KVFS_STANDIN");
	CUresult r = enter("cuInit", NOTHING);

	if (r != CU_OK)
		return r;
	if (flags != 0 ||
	    (initialised == 0 && text != NULL && standin_set(text) != 0))
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (initialised == 0)
		initialised = getpid();
	pthread_mutex_unlock(&lock);
	return settings.devices > 0 ? CU_OK : CU_NO_DEVICE;
}

/* ---- a thread's contexts ---- */

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	CUresult r = enter("cuCtxSetCurrent", INIT);

	if (r != CU_OK)
		return r;
	if (depth == 0)
		depth = 1;
	current[depth - 1] = ctx;
	return CU_OK;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	CUresult r = enter("cuCtxGetCurrent", INIT);

	if (r == CU_OK)
		*ctx = depth > 0 ? current[depth - 1] : NULL;
	return r;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	CUresult r = enter("cuCtxPushCurrent_v2", INIT);

	if (r != CU_OK)
		return r;
	if (ctx == NULL)
		return CU_INVALID_CONTEXT;
	if (depth == KV_ARRAY_LEN(current))
		return bug(CU_INVALID_CONTEXT, "contexts are never popped");
	current[depth++] = ctx;
	return CU_OK;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	CUresult r = enter("cuCtxPopCurrent_v2", INIT);

	if (r != CU_OK)
		return r;
	if (depth == 0)
		return bug(CU_INVALID_CONTEXT, "a pop without a push");
	depth--;
	if (ctx != NULL)
		*ctx = current[depth];
	return CU_OK;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	static __thread int mine;
	int old = mine;
	CUresult r = enter("cuThreadExchangeStreamCaptureMode", NOTHING);

	if (r != CU_OK)
		return r;
	if (*mode < 0 || *mode > 2)
		return CU_INVALID_VALUE;
	mine = *mode;
	*mode = old;
	return CU_OK;
}
