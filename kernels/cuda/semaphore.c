/* SPDX-License-Identifier: Apache-2.0 */
/*
 * semaphore.c - holds the caller's streams up until a transfer is over.
 *
 * OWNS      pages of pinned words, one word a gate, and events that tell when a
 *           stream has passed.  Gates are kept for later ones.
 *
 * STATES    of a gate:
 *
 *               FREE -> SHUT   kv_gate_new: to be opened with a new value
 *               SHUT -> OPEN   kv_gate_open
 *               OPEN -> FREE   kv_gate_free
 *
 * INVARIANTS
 *   (1) A word only grows.  A stream waits for the value its gate opens with or
 *       a later one, so that a gate can be used again while streams still wait
 *       for its use before.
 *   (2) A page is freed only when no stream can look at it any more; one that
 *       a stream may yet look at is left to the context's end.
 *
 * LOCKING   gpu->lock for the lists of pages and of free gates, and for a
 * gate's events.  host_lock, a leaf, for the functions that wait on the host:
 * they may outlive the GPU's use.
 */
#include "kernels/cuda/semaphore.h"

#define PAGE_BYTES 4096u
#define WORD_BYTES 64u /* a cache line, so that gates do not disturb others */
#define PAGE_GATES (PAGE_BYTES / WORD_BYTES)

struct kv_gate {
	LIST_ENTRY(kv_gate) others;
	struct kv_gpu *gpu;
	_Atomic uint32_t *word;
	CUdeviceptr on_device;
	uint32_t value; /* that opens it */
	/* lock, also kept from one use to the next */
	CUevent *passed; /* streams have come past it */
	size_t n_passed;
	bool lost; /* a stream waits, and no event tells how long */
};

struct kv_gate_page {
	LIST_ENTRY(kv_gate_page) others;
	void *words;
	struct kv_gate gates[PAGE_GATES];
};

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;

/* What a function on the host waits for. */
struct wait {
	const _Atomic uint32_t *word;
	uint32_t value;
};

static int page_new(struct kv_gpu *gpu, struct kv_gate_page **ret_page)
{
	_cleanup_(kv_freep) struct kv_gate_page *page = NULL;
	CUdeviceptr on_device;
	size_t i;
	int r;

	page = calloc(1, sizeof(*page));
	if (page == NULL)
		return -ENOMEM;
	r = kv_gpu_host_alloc(gpu, PAGE_BYTES, &page->words);
	if (r < 0)
		return r;
	r = kv_driver_errno(
		gpu->driver->host_device_pointer(&on_device, page->words, 0));
	if (r < 0) {
		kv_gpu_host_free(gpu, page->words, PAGE_BYTES);
		return r;
	}
	memset(page->words, 0, PAGE_BYTES);
	for (i = 0; i < PAGE_GATES; i++) {
		struct kv_gate *gate = &page->gates[i];

		gate->gpu = gpu;
		gate->word = (void *)((char *)page->words + i * WORD_BYTES);
		gate->on_device = on_device + i * WORD_BYTES;
	}
	*ret_page = kv_steal(page);
	return 0;
}

static void add_page(struct kv_gpu *gpu, struct kv_gate_page *page)
{
	size_t i;

	pthread_mutex_lock(&gpu->lock);
	LIST_INSERT_HEAD(&gpu->pages, page, others);
	for (i = 0; i < PAGE_GATES; i++)
		LIST_INSERT_HEAD(&gpu->gates, &page->gates[i], others);
	pthread_mutex_unlock(&gpu->lock);
}

static int add_gates(struct kv_gpu *gpu)
{
	struct kv_gpu_entry entry;
	struct kv_gate_page *page;
	int r = kv_gpu_enter(gpu, &entry);

	if (r < 0)
		return r;
	r = page_new(gpu, &page);
	kv_gpu_leave(&entry);
	if (r == 0)
		add_page(gpu, page);
	return r;
}

int kv_gate_new(struct kv_gpu *gpu, struct kv_gate **ret_gate)
{
	struct kv_gate *gate = NULL;
	int r = 0;

	while (gate == NULL && r == 0) {
		pthread_mutex_lock(&gpu->lock);
		gate = LIST_FIRST(&gpu->gates);
		if (gate != NULL)
			LIST_REMOVE(gate, others);
		pthread_mutex_unlock(&gpu->lock);
		if (gate == NULL)
			r = add_gates(gpu);
	}
	if (r < 0)
		return r;
	gate->value = atomic_load(gate->word) + 1;
	*ret_gate = gate;
	return 0;
}

static bool is_open(const _Atomic uint32_t *word, uint32_t value)
{
	return (int32_t)(atomic_load(word) - value) >= 0;
}

/* On a thread of the driver's, which must not call it. */
static void wait_on_host(void *arg)
{
	struct wait wait = *(struct wait *)arg;

	free(arg);
	pthread_mutex_lock(&host_lock);
	while (!is_open(wait.word, wait.value))
		pthread_cond_wait(&opened, &host_lock);
	pthread_mutex_unlock(&host_lock);
}

static int launch_wait(struct kv_gate *gate, CUstream stream)
{
	struct wait *wait = malloc(sizeof(*wait));
	int r;

	if (wait == NULL)
		return -ENOMEM;
	*wait = (struct wait){gate->word, gate->value};
	r = kv_driver_errno(
		gate->gpu->driver->launch_host(stream, wait_on_host, wait));
	if (r < 0)
		free(wait);
	return r;
}

static int give_wait(struct kv_gate *gate, CUstream stream)
{
	CUresult result = gate->gpu->driver->stream_wait_value(
		stream, gate->on_device, gate->value, CU_STREAM_WAIT_VALUE_GEQ);

	if (result == CUDA_ERROR_NOT_SUPPORTED)
		return launch_wait(gate, stream);
	return kv_driver_errno(result);
}

static bool add_passed(struct kv_gate *gate, CUevent event)
{
	CUevent *passed;

	pthread_mutex_lock(&gate->gpu->lock);
	passed =
		reallocarray(gate->passed, gate->n_passed + 1, sizeof(*passed));
	if (passed != NULL) {
		gate->passed = passed;
		passed[gate->n_passed++] = event;
	}
	pthread_mutex_unlock(&gate->gpu->lock);
	return passed != NULL;
}

/* Remember how far @stream is, for the page's sake. */
static void follow(struct kv_gate *gate, CUstream stream)
{
	const struct kv_driver *driver = gate->gpu->driver;
	CUevent event = NULL;

	if (driver->event_new(&event, CU_EVENT_DISABLE_TIMING) ==
		    CUDA_SUCCESS &&
	    driver->event_record(event, stream) == CUDA_SUCCESS &&
	    add_passed(gate, event))
		return;
	if (event != NULL)
		driver->event_free(event);
	pthread_mutex_lock(&gate->gpu->lock);
	gate->lost = true;
	pthread_mutex_unlock(&gate->gpu->lock);
}

int kv_gate_wait(struct kv_gate *gate, CUstream stream)
{
	struct kv_gpu_entry entry;
	int r;

	if (stream == NULL)
		return -EINVAL;
	r = kv_gpu_enter(gate->gpu, &entry);
	if (r < 0)
		return r;
	r = give_wait(gate, stream);
	if (r == 0)
		follow(gate, stream);
	kv_gpu_leave(&entry);
	return r;
}

void kv_gate_open(struct kv_gate *gate)
{
	pthread_mutex_lock(&host_lock);
	atomic_store(gate->word, gate->value);
	pthread_cond_broadcast(&opened);
	pthread_mutex_unlock(&host_lock);
}

/* Forget the streams that have come past. */
static void settle(struct kv_gate *gate)
{
	const struct kv_driver *driver = gate->gpu->driver;
	size_t i, kept = 0;

	for (i = 0; i < gate->n_passed; i++) {
		if (driver->event_query(gate->passed[i]) ==
		    CUDA_ERROR_NOT_READY)
			gate->passed[kept++] = gate->passed[i];
		else
			driver->event_free(gate->passed[i]);
	}
	gate->n_passed = kept;
}

void kv_gate_free(struct kv_gate *gate)
{
	struct kv_gpu_entry entry;

	assert(is_open(gate->word, gate->value));
	if (gate->n_passed > 0 &&
	    kv_gpu_enter_to_free(gate->gpu, &entry) == 0) {
		settle(gate);
		kv_gpu_leave(&entry);
	}
	pthread_mutex_lock(&gate->gpu->lock);
	LIST_INSERT_HEAD(&gate->gpu->gates, gate, others);
	pthread_mutex_unlock(&gate->gpu->lock);
}

/* Free its events; false if a stream may still come to look at its word. */
static bool finish(struct kv_gate *gate)
{
	bool over;
	size_t i;

	settle(gate);
	over = gate->n_passed == 0 && !gate->lost;
	for (i = 0; i < gate->n_passed; i++)
		gate->gpu->driver->event_free(gate->passed[i]);
	free(gate->passed);
	return over;
}

void kv_gates_free(struct kv_gpu *gpu)
{
	struct kv_gate_page *page;
	bool over;
	size_t i;

	while ((page = LIST_FIRST(&gpu->pages)) != NULL) {
		LIST_REMOVE(page, others);
		for (i = 0, over = true; i < PAGE_GATES; i++)
			over &= finish(&page->gates[i]);
		if (over)
			kv_gpu_host_free(gpu, page->words, PAGE_BYTES);
		free(page);
	}
}
