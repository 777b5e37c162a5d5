/* SPDX-License-Identifier: Apache-2.0 */
/*
 * semaphore.c - holds the caller's streams up until a transfer is over.
 *
 * OWNS      pages of pinned words, one word a semaphore, and events that tell
 *           when a stream has passed.  Semaphores are kept for later ones.
 *
 * STATES    of a semaphore:
 *
 *               FREE -> SHUT   kv_semaphore_new: to be opened with a new value
 *               SHUT -> OPEN   kv_semaphore_open
 *               OPEN -> FREE   kv_semaphore_free
 *
 * INVARIANTS
 *   (1) A word only grows.  A stream waits for the value its semaphore opens
 *       with or a later one, so that a semaphore can be used again while
 *       streams still wait for its use before.
 *   (2) A page is freed only when no stream can look at it any more; one that
 *       a stream may yet look at is left to the context's end.
 *
 * LOCKING   gpu->lock for the lists of pages and of free semaphores, and for a
 *           semaphore's events. host_lock, a leaf, for the functions that wait
 *           on the host: they may outlive the GPU's use.
 */
#include "kernels/cuda/semaphore.h"

#define PAGE_BYTES 4096u
#define WORD_BYTES \
	64u /* a cache line, so that semaphores do not disturb others */
#define PAGE_SEMAPHORES (PAGE_BYTES / WORD_BYTES)

struct kv_semaphore {
	LIST_ENTRY(kv_semaphore) others;
	struct kv_gpu *gpu;
	_Atomic uint32_t *word;
	CUdeviceptr on_device;
	uint32_t value; /* that opens it */
	/* lock, also kept from one use to the next */
	CUevent *passed; /* streams have come past it */
	size_t n_passed;
	bool lost; /* a stream waits, and no event tells how long */
};

struct kv_semaphore_page {
	LIST_ENTRY(kv_semaphore_page) others;
	void *words;
	struct kv_semaphore semaphores[PAGE_SEMAPHORES];
};

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;

/* Awaited by a function on the host. */
struct wait {
	const _Atomic uint32_t *word;
	uint32_t value;
};

static int page_new(struct kv_gpu *gpu, struct kv_semaphore_page **ret_page)
{
	_cleanup_(kv_freep) struct kv_semaphore_page *page = NULL;
	CUdeviceptr on_device;
	int r;

	page = calloc(1, sizeof(*page));
	if (!page)
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
	for (size_t i = 0; i < PAGE_SEMAPHORES; i++) {
		struct kv_semaphore *semaphore = &page->semaphores[i];

		semaphore->gpu = gpu;
		semaphore->word =
			(void *)((char *)page->words + i * WORD_BYTES);
		semaphore->on_device = on_device + i * WORD_BYTES;
	}
	*ret_page = kv_steal(page);
	return 0;
}

static void add_page(struct kv_gpu *gpu, struct kv_semaphore_page *page)
{
	pthread_mutex_lock(&gpu->lock);
	LIST_INSERT_HEAD(&gpu->pages, page, others);
	for (size_t i = 0; i < PAGE_SEMAPHORES; i++)
		LIST_INSERT_HEAD(&gpu->semaphores, &page->semaphores[i],
				 others);
	pthread_mutex_unlock(&gpu->lock);
}

static int add_semaphores(struct kv_gpu *gpu)
{
	struct kv_gpu_entry entry;
	struct kv_semaphore_page *page;
	int r = kv_gpu_enter(gpu, &entry);

	if (r < 0)
		return r;
	r = page_new(gpu, &page);
	kv_gpu_leave(&entry);
	if (r == 0)
		add_page(gpu, page);
	return r;
}

int kv_semaphore_new(struct kv_gpu *gpu, struct kv_semaphore **ret_semaphore)
{
	struct kv_semaphore *semaphore = NULL;
	int r = 0;

	while (!semaphore && r == 0) {
		pthread_mutex_lock(&gpu->lock);
		semaphore = LIST_FIRST(&gpu->semaphores);
		if (semaphore)
			LIST_REMOVE(semaphore, others);
		pthread_mutex_unlock(&gpu->lock);
		if (!semaphore)
			r = add_semaphores(gpu);
	}
	if (r < 0)
		return r;
	semaphore->value = atomic_load(semaphore->word) + 1;
	*ret_semaphore = semaphore;
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

static int launch_wait(struct kv_semaphore *semaphore, CUstream stream)
{
	struct wait *wait = malloc(sizeof(*wait));
	int r;

	if (!wait)
		return -ENOMEM;
	*wait = (struct wait){semaphore->word, semaphore->value};
	r = kv_driver_errno(semaphore->gpu->driver->launch_host(
		stream, wait_on_host, wait));
	if (r < 0)
		free(wait);
	return r;
}

static int give_wait(struct kv_semaphore *semaphore, CUstream stream)
{
	CUresult result = semaphore->gpu->driver->stream_wait_value(
		stream, semaphore->on_device, semaphore->value,
		CU_STREAM_WAIT_VALUE_GEQ);

	if (result == CUDA_ERROR_NOT_SUPPORTED)
		return launch_wait(semaphore, stream);
	return kv_driver_errno(result);
}

static bool add_passed(struct kv_semaphore *semaphore, CUevent event)
{
	CUevent *passed;

	pthread_mutex_lock(&semaphore->gpu->lock);
	passed = reallocarray(semaphore->passed, semaphore->n_passed + 1,
			      sizeof(*passed));
	if (passed) {
		semaphore->passed = passed;
		passed[semaphore->n_passed++] = event;
	}
	pthread_mutex_unlock(&semaphore->gpu->lock);
	return passed;
}

/* Remember how far @stream is, for the page's sake. */
static void follow(struct kv_semaphore *semaphore, CUstream stream)
{
	const struct kv_driver *driver = semaphore->gpu->driver;
	CUevent event = NULL;

	if (driver->event_new(&event, CU_EVENT_DISABLE_TIMING) ==
		    CUDA_SUCCESS &&
	    driver->event_record(event, stream) == CUDA_SUCCESS &&
	    add_passed(semaphore, event))
		return;
	if (event)
		driver->event_free(event);
	pthread_mutex_lock(&semaphore->gpu->lock);
	semaphore->lost = true;
	pthread_mutex_unlock(&semaphore->gpu->lock);
}

int kv_semaphore_wait(struct kv_semaphore *semaphore, CUstream stream)
{
	struct kv_gpu_entry entry;
	int r;

	if (!stream)
		return -EINVAL;
	r = kv_gpu_enter(semaphore->gpu, &entry);
	if (r < 0)
		return r;
	r = give_wait(semaphore, stream);
	if (r == 0)
		follow(semaphore, stream);
	kv_gpu_leave(&entry);
	return r;
}

void kv_semaphore_open(struct kv_semaphore *semaphore)
{
	pthread_mutex_lock(&host_lock);
	atomic_store(semaphore->word, semaphore->value);
	pthread_cond_broadcast(&opened);
	pthread_mutex_unlock(&host_lock);
}

/* Forget the streams that have come past. */
static void settle(struct kv_semaphore *semaphore)
{
	const struct kv_driver *driver = semaphore->gpu->driver;
	size_t kept = 0;

	for (size_t i = 0; i < semaphore->n_passed; i++) {
		if (driver->event_query(semaphore->passed[i]) ==
		    CUDA_ERROR_NOT_READY)
			semaphore->passed[kept++] = semaphore->passed[i];
		else
			driver->event_free(semaphore->passed[i]);
	}
	semaphore->n_passed = kept;
}

void kv_semaphore_free(struct kv_semaphore *semaphore)
{
	struct kv_gpu_entry entry;

	assert(is_open(semaphore->word, semaphore->value));
	if (semaphore->n_passed > 0 &&
	    kv_gpu_enter_to_free(semaphore->gpu, &entry) == 0) {
		settle(semaphore);
		kv_gpu_leave(&entry);
	}
	pthread_mutex_lock(&semaphore->gpu->lock);
	LIST_INSERT_HEAD(&semaphore->gpu->semaphores, semaphore, others);
	pthread_mutex_unlock(&semaphore->gpu->lock);
}

/* Free its events; false if a stream may still come to look at its word. */
static bool finish(struct kv_semaphore *semaphore)
{
	bool over;

	settle(semaphore);
	over = semaphore->n_passed == 0 && !semaphore->lost;
	for (size_t i = 0; i < semaphore->n_passed; i++)
		semaphore->gpu->driver->event_free(semaphore->passed[i]);
	free(semaphore->passed);
	return over;
}

void kv_semaphores_free(struct kv_gpu *gpu)
{
	struct kv_semaphore_page *page;
	bool over;
	size_t i;

	while ((page = LIST_FIRST(&gpu->pages))) {
		LIST_REMOVE(page, others);
		for (i = 0, over = true; i < PAGE_SEMAPHORES; i++)
			over &= finish(&page->semaphores[i]);
		if (over)
			kv_gpu_host_free(gpu, page->words, PAGE_BYTES);
		free(page);
	}
}
