/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ring.c - the disk ring: the same tests on io_uring and on threads.
 *
 * OWNS      nothing but its fixture.
 *
 * LOCKING   none: what callbacks write is read after kv_ring_free.
 */
#include <signal.h>
#include <sys/resource.h>

#include "tests/cache/ring_fixture.h"

/* ---- requests that fail ---- */

static void a_read_past_the_end_is_enodata(void **state)
{
	struct fixture *f = *state;
	struct kv_io io = request(f, KV_IO_READ, 0, 4);

	io.offset = (uint64_t)FILE_PAGES * KV_PAGE;
	assert_int_equal(kv_ring_wait(f->ring, &io), -ENODATA);
}

static void a_read_across_the_end_is_enodata(void **state)
{
	struct fixture *f = *state;
	struct kv_io io = request(f, KV_IO_READ, 0, 4);

	io.offset = (uint64_t)(FILE_PAGES - 2) * KV_PAGE;
	assert_int_equal(kv_ring_wait(f->ring, &io), -ENODATA);
}

static void a_read_of_a_page_that_is_cut_off_is_enodata(void **state)
{
	struct fixture *f = *state;
	struct kv_io io = request(f, KV_IO_READ, 0, 2);

	assert_int_equal(ftruncate(f->fd, KV_PAGE + 100), 0);
	assert_int_equal(kv_ring_wait(f->ring, &io), -ENODATA);
}

static void a_descriptor_that_is_not_open_is_ebadf(void **state)
{
	struct fixture *f = *state;
	struct kv_io io = request(f, KV_IO_READ, 0, 1);

	io.fd = 1 << 20;
	assert_int_equal(kv_ring_wait(f->ring, &io), -EBADF);
	io.op = KV_IO_WRITE;
	assert_int_equal(kv_ring_wait(f->ring, &io), -EBADF);
	io.op = KV_IO_SYNC;
	assert_int_equal(kv_ring_wait(f->ring, &io), -EBADF);
}

static void a_write_to_a_read_only_descriptor_is_ebadf(void **state)
{
	struct fixture *f = *state;
	struct kv_io io = request(f, KV_IO_WRITE, 0, 1);

	io.fd = open_direct(f->path, O_RDONLY);
	assert_int_equal(kv_ring_wait(f->ring, &io), -EBADF);
	close(io.fd);
}

static void a_short_write_goes_on_and_ends_with_the_true_error(void **state)
{
	struct fixture *f = *state;
	struct kv_io io = request(f, KV_IO_WRITE, 0, 4);
	struct rlimit before, limit;
	int status;

	assert_int_equal(ftruncate(f->fd, 0), 0);
	getrlimit(RLIMIT_FSIZE, &before);
	limit = (struct rlimit){2 * KV_PAGE, before.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &limit);
	status = kv_ring_wait(f->ring, &io);
	setrlimit(RLIMIT_FSIZE, &before);
	assert_int_equal(status, -EFBIG);
	assert_int_equal(lseek(f->fd, 0, SEEK_END), 2 * KV_PAGE);
}

/* ---- requests that succeed ---- */

static void what_is_written_is_read_back(void **state)
{
	struct fixture *f = *state;
	struct kv_io write = request(f, KV_IO_WRITE, 3, 5);
	struct kv_io sync = request(f, KV_IO_SYNC, 0, 0);
	struct kv_io read = request(f, KV_IO_READ, 0, FILE_PAGES);

	memset(write.data, 0xab, write.bytes);
	assert_int_equal(kv_ring_wait(f->ring, &write), 0);
	assert_int_equal(kv_ring_wait(f->ring, &sync), 0);
	memset(f->memory, 0xff, FILE_PAGES * KV_PAGE);
	assert_int_equal(kv_ring_wait(f->ring, &read), 0);
	for (unsigned i = 0; i < FILE_PAGES; i++)
		assert_page(f->memory + (size_t)i * KV_PAGE,
			    i >= 3 && i < 8 ? 0xab : (int)i);
	assert_false(kv_ring_failed(f->ring));
}

struct ordered {
	struct kv_io io;
	struct order *order;
	char name;
};

struct order {
	struct kv_ring *ring;
	struct ordered first, rest[6];
	char seen[8];
	unsigned n, running;
	pthread_t caller;
};

static void note_order(struct kv_io *io, int status)
{
	struct ordered *o = (struct ordered *)io;
	struct order *order = o->order;

	assert(status == 0 && order->running++ == 0);
	assert(!pthread_equal(pthread_self(), order->caller));
	order->seen[order->n++] = o->name;
	if (o->name == '0')
		for (unsigned i = 0; i < 6; i++)
			kv_ring_submit(order->ring, &order->rest[i].io);
	order->running--;
}

static struct ordered ordered(struct fixture *f, struct order *order, char name,
			      enum kv_io_op op)
{
	struct ordered o = {.io = request(f, op, (unsigned)name % 8, 1),
			    .order = order,
			    .name = name};

	o.io.done = note_order;
	return o;
}

static void reads_go_before_writes_and_each_in_order(void **state)
{
	static const char names[] = "aAbBcC";
	struct fixture *f = *state;
	struct order order = {.caller = pthread_self()};

	assert_int_equal(ring_new(f, 1, 0, &order.ring), 0);
	order.first = ordered(f, &order, '0', KV_IO_READ);
	for (unsigned i = 0; i < 6; i++)
		order.rest[i] =
			ordered(f, &order, names[i],
				names[i] >= 'a' ? KV_IO_WRITE : KV_IO_READ);
	order.rest[4].io.op = KV_IO_SYNC;
	kv_ring_submit(order.ring, &order.first.io);
	kv_ring_free(order.ring);
	assert_string_equal(order.seen, "0ABCabc");
}

/* A read request that submits the next one when it ends, until the sync has
 * ended or the number of reads is far too high. */
struct endless {
	/* must be the first field: its address is cast to this struct */
	struct kv_io io;
	struct ending *ending;
};

struct ending {
	struct kv_ring *ring;
	struct endless reads[2], write, sync;
	unsigned n_reads, before_write, before_sync;
};

static void read_again(struct kv_io *io, int status)
{
	struct ending *ending = ((struct endless *)io)->ending;

	assert(status == 0);
	if (!ending->before_sync && ++ending->n_reads < 1000)
		kv_ring_submit(ending->ring, io);
}

static void note_end(struct kv_io *io, int status)
{
	struct ending *ending = ((struct endless *)io)->ending;

	assert(status == 0);
	if (io->op == KV_IO_SYNC) {
		ending->before_sync = ending->n_reads;
		return;
	}
	ending->before_write = ending->n_reads;
	kv_ring_submit(ending->ring, &ending->sync.io);
}

static void endless_reads_do_not_starve_a_write_or_a_sync(void **state)
{
	struct fixture *f = *state;
	struct ending e = {
		.reads = {{request(f, KV_IO_READ, 0, 16), &e},
			  {request(f, KV_IO_READ, 16, 16), &e}},
		.write = {request(f, KV_IO_WRITE, 40, 16), &e},
		.sync = {request(f, KV_IO_SYNC, 0, 0), &e},
	};

	e.reads[0].io.done = e.reads[1].io.done = read_again;
	e.write.io.done = e.sync.io.done = note_end;
	assert_int_equal(ring_new(f, 1, 0, &e.ring), 0);
	kv_ring_submit(e.ring, &e.reads[0].io);
	kv_ring_submit(e.ring, &e.reads[1].io);
	kv_ring_submit(e.ring, &e.write.io);
	kv_ring_free(e.ring);
	/* Reads may overtake the write until they have read as many bytes as it
	 * writes, which takes four reads; the others were queued before the
	 * write. */
	assert_in_range(e.before_write, 4, 20);
	assert_in_range(e.before_sync - e.before_write, 4, 6);
}

/* ---- a ring whose requests the test carries out ---- */

static int still_start(struct kv_ring *ring)
{
	(void)ring;
	return 0;
}

static void still_do_nothing(struct kv_ring *ring)
{
	(void)ring;
}

static const struct kv_ring_backend still = {
	.start = still_start,
	.wake = still_do_nothing,
	.stop = still_do_nothing,
};

static struct kv_io *next_of(struct kv_ring *ring)
{
	struct kv_io *io;

	pthread_mutex_lock(&ring->lock);
	io = kv_ring_next_locked(ring);
	pthread_mutex_unlock(&ring->lock);
	return io;
}

static void ignore_end(struct kv_io *io, int status)
{
	(void)io;
	(void)status;
}

static void reads_at_the_device_are_bounded_and_leave_room(void **state)
{
	struct fixture *f = *state;
	const struct kv_ring_config config = {
		.depth = 8,
		.bytes = 64 * KV_PAGE,
		.read_bytes = 16 * KV_PAGE,
		.backend = &still,
	};
	struct kv_io reads[12], write = request(f, KV_IO_WRITE, 0, 8);
	struct kv_ring *ring;
	unsigned n = 0;

	assert_int_equal(kv_ring_new(&config, &ring), 0);
	for (unsigned i = 0; i < 12; i++) {
		reads[i] = request(f, KV_IO_READ, i, 8);
		reads[i].done = ignore_end;
		kv_ring_submit(ring, &reads[i]);
	}
	write.done = ignore_end;
	assert_ptr_equal(next_of(ring), &reads[0]);
	assert_ptr_equal(next_of(ring), &reads[1]);
	assert_null(next_of(ring));
	kv_ring_submit(ring, &write);
	/* the write waits for the reads before it */
	assert_null(next_of(ring));
	for (; n < 8; n++) { /* the write counts as four reads of 64 KiB */
		kv_ring_finish(ring, &reads[n], 0);
		assert_ptr_equal(next_of(ring), &reads[n + 2]);
	}
	assert_ptr_equal(next_of(ring), &write);
	assert_null(next_of(ring));
	kv_ring_finish(ring, &write, 0);
	for (; n < 10; n++)
		kv_ring_finish(ring, &reads[n], 0);
	for (; n < 12; n++)
		kv_ring_finish(ring, next_of(ring), 0);
	kv_ring_free(ring);
}

/* ---- the end of a ring by kv_ring_free ---- */

static void free_waits_for_everything_and_done_runs_alone(void **state)
{
	struct fixture *f = *state;
	struct order order = {.caller = pthread_self()};
	struct counted io[40];
	struct count count = {0};

	sem_init(&count.each, 0, 0);
	assert_int_equal(ring_new(f, DEPTH, 0, &order.ring), 0);
	for (unsigned i = 0; i < KV_ARRAY_LEN(io); i++) {
		io[i].io = request(f, KV_IO_READ, i, 1);
		io[i].io.done = count_it;
		io[i].count = &count;
		kv_ring_submit(order.ring, &io[i].io);
	}
	kv_ring_free(order.ring);
	assert_int_equal(count.done, KV_ARRAY_LEN(io));
	assert_int_equal(count.failed, 0);
	for (unsigned i = 0; i < KV_ARRAY_LEN(io); i++)
		assert_page(f->memory + (size_t)i * KV_PAGE, (int)i);
	sem_destroy(&count.each);
}

struct hammer {
	struct fixture *f;
	unsigned page;
	int failures;
};

/* Write and read eight pages that no other thread uses. */
static void *hammer(void *arg)
{
	struct hammer *h = arg;
	struct kv_io write = request(h->f, KV_IO_WRITE, h->page, 8);
	struct kv_io read = request(h->f, KV_IO_READ, h->page, 8);
	uint8_t *data = write.data;

	for (unsigned i = 0; i < 25; i++) {
		memset(data, (int)(h->page + i), write.bytes);
		h->failures += kv_ring_wait(h->f->ring, &write) != 0;
		memset(data, 0xee, write.bytes);
		h->failures += kv_ring_wait(h->f->ring, &read) != 0;
		h->failures += data[0] != (uint8_t)(h->page + i) ||
			       data[8 * KV_PAGE - 1] != (uint8_t)(h->page + i);
	}
	return NULL;
}

static void threads_do_not_get_each_others_bytes(void **state)
{
	struct hammer hammers[6];
	pthread_t threads[6];

	for (unsigned i = 0; i < 6; i++) {
		hammers[i] = (struct hammer){*state, i * 8, 0};
		pthread_create(&threads[i], NULL, hammer, &hammers[i]);
	}
	for (unsigned i = 0; i < 6; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(hammers[i].failures, 0);
	}
}

static void free_takes_null(void **state)
{
	(void)state;
	kv_ring_free(NULL);
}

static void threads_register_no_buffers_and_say_so(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(kv_ring_add_buffer(f->ring, f->memory, KV_PAGE),
			 -EOPNOTSUPP);
	assert_string_equal(kv_ring_describe(f->ring), "threads (as asked)");
}

static bool with_threads = true, with_uring = false;

#define BOTH(f)                                                    \
	{#f " (io_uring)", f, setup, teardown, &with_uring},       \
	{                                                          \
#f " (threads)", f, setup, teardown, &with_threads \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(a_read_past_the_end_is_enodata),
		BOTH(a_read_across_the_end_is_enodata),
		BOTH(a_read_of_a_page_that_is_cut_off_is_enodata),
		BOTH(a_descriptor_that_is_not_open_is_ebadf),
		BOTH(a_write_to_a_read_only_descriptor_is_ebadf),
		BOTH(a_short_write_goes_on_and_ends_with_the_true_error),
		BOTH(what_is_written_is_read_back),
		BOTH(reads_go_before_writes_and_each_in_order),
		BOTH(endless_reads_do_not_starve_a_write_or_a_sync),
		{"reads_at_the_device_are_bounded_and_leave_room",
		 reads_at_the_device_are_bounded_and_leave_room, setup,
		 teardown, &with_threads},
		BOTH(free_waits_for_everything_and_done_runs_alone),
		BOTH(threads_do_not_get_each_others_bytes),
		{"threads_register_no_buffers_and_say_so",
		 threads_register_no_buffers_and_say_so, setup, teardown,
		 &with_threads},
		cmocka_unit_test(free_takes_null),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
