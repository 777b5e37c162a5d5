/* SPDX-License-Identifier: Apache-2.0 */
/* test_check.c - LMDB files, sound ones and damaged ones. */
#include "index_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define ROUNDS 300

static void expect_sound(const struct fixture *f)
{
	char why[KV_WHY_MAX];
	int r = kv_index_check(f->directory, MAP, why);

	if (r < 0)
		fail_msg("a sound index is called damaged: %s", why);
}

static int put_space(struct fixture *f, uint32_t id, size_t layout_len)
{
	const struct kv_space_record record = {.id = id};
	struct kv_txn *batch;
	int r = kv_txn_begin(f->index, &batch);

	memset(f->text, 'x', layout_len);
	f->text[layout_len] = 0;
	if (r == 0)
		r = kv_txn_put_space(batch, &record, "space", f->text);
	return r < 0 ? r : kv_txn_commit(batch);
}

static void every_index_that_lmdb_makes_is_sound(void **state)
{
	struct fixture *f = *state;

	expect_sound(f);
	for (unsigned i = 0; i < 40; i++) {
		assert_int_equal(put_slots(f, i * 5000ull << 20 >> i, 1500), 0);
		assert_int_equal(put_space(f, i % 7 + 1, i * 1700), 0);
		expect_sound(f);
		assert_int_equal(
			delete_slots(f, i * 5000ull << 20 >> i, 400, 3), 0);
		expect_sound(f);
	}
	assert_int_equal(open_again(f, false), 0);
	expect_sound(f);
}

static void without_a_file_there_is_none(void **state)
{
	struct fixture *f = *state;
	char why[KV_WHY_MAX];

	kv_index_close(kv_steal(f->index));
	assert_int_equal(truncate(f->data, 0), 0);
	assert_int_equal(kv_index_check(f->directory, MAP, why), -ENOENT);
	assert_int_equal(unlink(f->data), 0);
	assert_int_equal(kv_index_check(f->directory, MAP, why), -ENOENT);
	assert_int_equal(symlink("/etc/hostname", f->data), 0);
	assert_int_equal(kv_index_check(f->directory, MAP, why), -EBADMSG);
}

static void fill(struct fixture *f)
{
	assert_int_equal(put_slots(f, 1, 3000), 0);
	assert_int_equal(delete_slots(f, 2, 500, 5), 0);
	assert_int_equal(put_space(f, 1, 9000), 0);
	assert_int_equal(put_space(f, 2, 100), 0);
}

static void a_file_that_is_cut_off_is_damaged(void **state)
{
	struct fixture *f = *state;
	char why[KV_WHY_MAX];
	struct stat st;

	fill(f);
	kv_index_close(kv_steal(f->index));
	assert_int_equal(stat(f->data, &st), 0);
	for (off_t size = st.st_size / 2; size > 0; size /= 2) {
		assert_int_equal(truncate(f->data, size), 0);
		assert_int_equal(kv_index_check(f->directory, MAP, why),
				 -EBADMSG);
		assert_true(why[0]);
	}
}

/* The check of a file does not read a hole of 1 TiB. */
static void a_file_that_is_far_too_long_is_damaged(void **state)
{
	struct fixture *f = *state;
	char why[KV_WHY_MAX];

	fill(f);
	kv_index_close(kv_steal(f->index));
	assert_int_equal(truncate(f->data, (off_t)1 << 40), 0);
	alarm(60);
	assert_int_equal(kv_index_check(f->directory, MAP, why), -EBADMSG);
	alarm(0);
}

/* Open, read and change an index in a child process, as the daemon does. */
static int use(const struct fixture *f)
{
	pid_t pid = fork();
	int status = -1;

	if (pid == 0) {
		struct fixture own = *f;
		struct seen *seen = calloc(1, sizeof(*seen));

		alarm(20);
		if (kv_index_open(own.directory, MAP, false, NULL, &own.info,
				  &own.index) == 0) {
			walk(&own, seen);
			put_slots(&own, 100, 50);
			delete_slots(&own, 50, 60, 7);
			put_slots(&own, 1u << 30, 900);
			put_space(&own, 3, 30000);
			put_slots(&own, 7, 100);
			kv_index_close(own.index);
		}
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void damage(uint8_t *image, size_t bytes, unsigned round)
{
	unsigned n = 1 + (unsigned)random() % (round % 3 ? 3 : 400);

	for (unsigned i = 0; i < n; i++) {
		size_t at = (size_t)random() % bytes;
		const size_t length = (size_t)random() % 64;

		switch (random() % 4) {
		case 0:
			/* damage one of the numbers at the start of an LMDB
			 * page */
			at = at / 4096 * 4096 + (size_t)random() % 64;
			image[at] ^= (uint8_t)(1u << random() % 8);
			break;
		case 1:
			image[at] = (uint8_t)random();
			break;
		case 2:
			memset(image + at, random() % 2 ? 0 : 0xff,
			       KV_MIN(bytes - at, length));
			break;
		default: /* overwrite an LMDB page by a copy of another one */
			memcpy(image + at / 4096 * 4096,
			       image + (size_t)random() % (bytes / 4096) * 4096,
			       4096);
		}
	}
}

static void lmdb_survives_what_is_called_sound(void **state)
{
	struct fixture *f = *state;
	unsigned sound = 0, found = 0;
	uint8_t *image, *copy;
	char why[KV_WHY_MAX];
	struct stat st;
	int fd;

	fill(f);
	kv_index_close(kv_steal(f->index));
	fd = open(f->data, O_RDWR | O_CLOEXEC);
	assert_int_equal(fstat(fd, &st), 0);
	image = malloc((size_t)st.st_size);
	copy = malloc((size_t)st.st_size);
	assert_int_equal(pread(fd, image, (size_t)st.st_size, 0), st.st_size);
	srandom(7);
	for (unsigned i = 0; i < ROUNDS; i++) {
		int status;

		memcpy(copy, image, (size_t)st.st_size);
		damage(copy, (size_t)st.st_size, i);
		assert_int_equal(ftruncate(fd, st.st_size), 0);
		assert_int_equal(pwrite(fd, copy, (size_t)st.st_size, 0),
				 st.st_size);
		if (kv_index_check(f->directory, MAP, why) < 0) {
			found++;
			continue;
		}
		sound++;
		unlink(f->lock);
		status = use(f);
		if (status != 0)
			fail_msg("round %u: it ends with status %x", i,
				 (unsigned)status);
	}
	printf("%u damaged files refused, %u taken and used\n", found, sound);
	assert_true(found > 0 && sound > 0);
	close(fd);
	free(image);
	free(copy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(every_index_that_lmdb_makes_is_sound),
		TEST(without_a_file_there_is_none),
		TEST(a_file_that_is_cut_off_is_damaged),
		TEST(a_file_that_is_far_too_long_is_damaged),
		TEST(lmdb_survives_what_is_called_sound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
