/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - the stand-in's settings, faults on demand, and counts of bugs.
 *
 * OWNS      the settings, the faults to come, and the counts of calls and bugs.
 *
 * INVARIANTS
 *   (1) After an operation broke the device, every later call returns that
 *       operation's error, as with a real device.
 *   (2) Settings change between tests only, when no operation is in flight.
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
	.mem_ops = true,
	.pageable = true,
	.enterable = true,
	.memory = 8ull << 30,
	.patience_s = 60,
	.arch = 90,
	.version = 13000,
};
pthread_mutex_t big_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
__thread bool in_host_function;
__thread int capture_mode;
uint64_t copied[2];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	const char *name;
	uint64_t n;
} calls[MAX_CALLS]; /* lock */
static struct {
	char call[48];
	/* number of calls of @call until the fault; 0: unused entry */
	unsigned in;
	CUresult code;
} faults[MAX_FAULTS];	/* lock */
static uint64_t bugs;	/* lock */
static CUresult broken; /* lock */
/* number of calls until the device breaks, or one call fails, and the error; 0:
 * never; guarded by the lock */
static struct {
	unsigned in;
	CUresult with;
} breaks, fails;
/* process that initialised the driver; 0: none; guarded by the lock */
static pid_t initialised;
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

/* Behave like the strictest or the kindest driver. */
static void be_strict(bool strict)
{
	const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");

	settings.syncs = strict ? (1u << N_SYNCS) - 1 : 0;
	settings.queues = 0;
	if (strict)
		settings.queues = connections ? (unsigned)atoi(connections) : 8;
	settings.register_us = strict ? 100 : 0;
	settings.one_host_thread = strict;
	settings.read_only = !strict;
}

/* Parse "none", "all", or kinds separated by +. */
static int set_syncs(const char *text)
{
	static const char *const kinds[N_SYNCS] = {
		"launch", "load", "alloc", "free", "register", "unregister"};
	unsigned syncs = 0, i;
	size_t len;

	if (strcmp(text, "all") == 0)
		syncs = (1u << N_SYNCS) - 1;
	else if (strcmp(text, "none") != 0)
		for (; *text != '\0'; text += len + (text[len] == '+')) {
			len = strcspn(text, "+");
			for (i = 0; i < N_SYNCS; i++)
				if (strlen(kinds[i]) == len &&
				    memcmp(kinds[i], text, len) == 0)
					break;
			if (i == N_SYNCS)
				return -1;
			syncs |= 1u << i;
		}
	settings.syncs = syncs;
	return 0;
}

static bool *flag_of(const char *name)
{
	if (strcmp(name, "readonly") == 0)
		return &settings.read_only;
	if (strcmp(name, "memops") == 0)
		return &settings.mem_ops;
	if (strcmp(name, "enterable") == 0)
		return &settings.enterable;
	if (strcmp(name, "pageable") == 0)
		return &settings.pageable;
	return strcmp(name, "hostthread") == 0 ? &settings.one_host_thread
					       : NULL;
}

static unsigned *number_of(const char *name)
{
	if (strcmp(name, "delay") == 0)
		return &settings.delay_us;
	if (strcmp(name, "seed") == 0)
		return &settings.seed;
	if (strcmp(name, "queues") == 0)
		return &settings.queues;
	if (strcmp(name, "cost") == 0)
		return &settings.register_us;
	return strcmp(name, "patience") == 0 ? &settings.patience_s : NULL;
}

static int set_one_locked(const char *name, const char *value)
{
	unsigned long n = strtoul(value, NULL, 10);

	if (flag_of(name) != NULL)
		*flag_of(name) = n != 0;
	else if (number_of(name) != NULL)
		__atomic_store_n(number_of(name), (unsigned)n,
				 __ATOMIC_RELAXED);
	else if (strcmp(name, "strict") == 0)
		be_strict(n != 0);
	else if (strcmp(name, "sync") == 0)
		return set_syncs(value);
	else if (strcmp(name, "devices") == 0)
		settings.devices = (int)n;
	else if (strcmp(name, "memory") == 0)
		settings.memory = n;
	else if (strcmp(name, "arch") == 0)
		settings.arch = (int)n;
	else if (strcmp(name, "version") == 0)
		settings.version = (int)n;
	else if (strcmp(name, "fail") == 0)
		return add_fault(value);
	else if (strcmp(name, "break") == 0)
		return sscanf(value, "%u:%d", &breaks.in, &breaks.with) - 2;
	else if (strcmp(name, "once") == 0)
		return sscanf(value, "%u:%d", &fails.in, &fails.with) - 2;
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

/* ---- bugs of callers, faults on demand, counts of calls ---- */

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
	pthread_mutex_lock(&big_lock);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&big_lock);
}

bool device_is_broken(void)
{
	bool is;

	pthread_mutex_lock(&lock);
	is = broken != CU_OK;
	pthread_mutex_unlock(&lock);
	return is;
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
	breaks.in = fails.in = 0;
	memset(faults, 0, sizeof(faults));
	pthread_mutex_unlock(&lock);
}

uint64_t standin_calls(const char *call)
{
	uint64_t n = 0;
	unsigned i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < MAX_CALLS && calls[i].name != NULL; i++)
		if (strcmp(call, "*") == 0 || strcmp(calls[i].name, call) == 0)
			n += calls[i].n;
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

	if (fails.in > 0 && strcmp(call, "cuCtxPopCurrent_v2") != 0 &&
	    strcmp(call, "cuMemUnmap") != 0 && --fails.in == 0)
		return fails.with;
	for (i = 0; i < MAX_FAULTS; i++)
		if (faults[i].in > 0 && strcmp(faults[i].call, call) == 0 &&
		    --faults[i].in == 0)
			return faults[i].code;
	return CU_OK;
}

/* Return whether @call is a call that a capture may forbid to other threads. */
static bool is_unsafe(const char *call)
{
	static const char *const unsafe[] = {
		"cuMemAlloc_v2",	"cuMemFree_v2",
		"cuMemHostAlloc",	"cuMemFreeHost",
		"cuMemHostRegister_v2", "cuMemHostUnregister",
		"cuMemcpyHtoD_v2",	"cuMemcpyDtoH_v2",
		"cuModuleLoadData",	"cuModuleUnload",
		"cuCtxSynchronize",	"cuStreamSynchronize",
		"cuStreamQuery",	"cuEventSynchronize",
		"cuEventQuery",
	};
	unsigned i;

	for (i = 0; i < KV_ARRAY_LEN(unsafe); i++)
		if (strcmp(call, unsafe[i]) == 0)
			return true;
	return false;
}

/* Return whether @call is one that a broken device allows: it changes which context
 * a thread uses. */
static bool is_allowed_when_broken(const char *call)
{
	return strcmp(call, "cuCtxPopCurrent_v2") == 0 ||
	       (settings.enterable &&
		(strcmp(call, "cuCtxPushCurrent_v2") == 0 ||
		 strcmp(call, "cuCtxSetCurrent") == 0));
}

CUresult enter(const char *call, enum needs needs)
{
	bool now;
	CUresult r;
	pid_t owner;

	pthread_mutex_lock(&lock);
	count_locked(call);
	now = breaks.in > 0 && --breaks.in == 0;
	pthread_mutex_unlock(&lock);
	if (now)
		break_device(breaks.with);
	pthread_mutex_lock(&lock);
	r = fault_locked(call);
	owner = initialised;
	if (r == CU_OK && needs != NOTHING && !is_allowed_when_broken(call))
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
	if (needs != CONTEXT)
		return CU_OK;
	r = context_check(current[depth - 1], call);
	if (r != CU_OK)
		return r;
	if (is_unsafe(call) && capture_forbids())
		return CU_CAPTURE_UNSUPPORTED;
	context_pass(current[depth - 1]);
	return CU_OK;
}

CUcontext current_context(void)
{
	return depth == 0 ? NULL : current[depth - 1];
}

CUresult cuInit(unsigned flags)
{
	const char *text = getenv("KVFS_STANDIN");
	CUresult r = enter("cuInit", NOTHING);
	bool first;

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&lock);
	first = initialised == 0;
	if (first) {
		be_strict(true);
		initialised = getpid();
	}
	pthread_mutex_unlock(&lock);
	if (flags != 0 || (first && text != NULL && standin_set(text) != 0))
		return CU_INVALID_VALUE;
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
	int old = capture_mode;
	CUresult r = enter("cuThreadExchangeStreamCaptureMode", NOTHING);

	if (r != CU_OK)
		return r;
	if (*mode < 0 || *mode > 2)
		return CU_INVALID_VALUE;
	capture_mode = *mode;
	*mode = old;
	return CU_OK;
}
