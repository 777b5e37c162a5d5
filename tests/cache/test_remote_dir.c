/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_dir.c - the remote tier's backend in a directory, and what other users may
 * do there.
 *
 * OWNS      a directory; a small filesystem, if the test may mount one.
 *
 * LOCKING   none.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "tests/cache/backend.h"
#include "tests/tree.h"

#define OTHER 1002 /* another user */
#define KEY "00112233445566778899aabbccddeeff"

static char root[64], away[80];

/* Names of files whose removal, or rename, waits for the semaphore `let_go`. */
#define HELD "held"
#define LATE "late"
static sem_t let_go;

/* Replace the C library's unlinkat. */
int unlinkat(int fd, const char *name, int flags)
{
	int (*real)(int, const char *, int);

	if (strcmp(name, HELD) == 0)
		sem_wait(&let_go);
	*(void **)&real = dlsym(RTLD_NEXT, "unlinkat");
	return real(fd, name, flags);
}

/* Replace the C library's renameat. */
int renameat(int fd, const char *from, int to_fd, const char *to)
{
	int (*real)(int, const char *, int, const char *);

	if (strcmp(to, LATE) == 0)
		sem_wait(&let_go);
	*(void **)&real = dlsym(RTLD_NEXT, "renameat");
	return real(fd, from, to_fd, to);
}

static struct kv_remote_config config = {.write = KV_WRITEBACK_ALL};

static void *make(const char *path)
{
	_cleanup_(kv_freep) char *why = NULL;
	struct kv_ops *made = NULL;

	assert_int_equal(kv_remote_dir.make(kv_remote_dir.scheme, path, &config,
					    &made, &why),
			 0);
	return made;
}

static int set_up(void **state)
{
	(void)state;
	snprintf(root, sizeof(root), "kvfs-remote.XXXXXX");
	if (!mkdtemp(root))
		return -1;
	snprintf(away, sizeof(away), "%s.away", root);
	driver = &kv_remote_dir;
	config.unsafe = false;
	backend = make(root);
	return 0;
}

static int tear_down(void **state)
{
	int r = driver->close(backend);

	(void)state;
	umount2(away, MNT_DETACH); /* mounted by a test that failed */
	chmod(root, 0700);
	tree_remove(root);
	tree_remove(away);
	return r;
}

/* Return the path of @name in the directory; the fourth call after this overwrites it. */
static const char *at(const char *name)
{
	static char paths[4][400];
	static unsigned next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", root, name);
	return path;
}

static void write_file(const char *name, const char *text)
{
	FILE *file = fopen(at(name), "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void must_be_refused(enum kv_remote_call call, const char *name,
			    const char *word)
{
	must_fail(call == KV_REMOTE_PUT ? put_of(name, "bytes", 5)
					: op_of(call, name),
		  -EACCES, word);
}

/* Check that HEAD and GET of @name are refused, and that calls for another
 * object succeed. */
static void all_are_refused(const char *name, const char *word)
{
	must_be_refused(KV_REMOTE_HEAD, name, word);
	must_be_refused(KV_REMOTE_GET, name, word);
	assert_int_equal(put("9/2-other/k", "bytes", 5), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, "9/2-other/k"), 0);
}

static void test_a_cut_file_is_damaged(void **state)
{
	(void)state;
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	write_file(OBJECT, "");
	must_fail(op_of(KV_REMOTE_GET, OBJECT), -EBADMSG, "empty");
}

static void test_only_its_user_reads_it(void **state)
{
	struct stat st;

	(void)state;
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	assert_int_equal(stat(at(OBJECT), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(stat(at("1000"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
}

static void test_a_put_leaves_nothing_but_the_object(void **state)
{
	char entries[100] = "";
	FILE *list;

	(void)state;
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	snprintf(entries, sizeof(entries), "find %s -type f | wc -l", root);
	list = popen(entries, "r");
	assert_non_null(list);
	assert_non_null(fgets(entries, sizeof(entries), list));
	pclose(list);
	assert_string_equal(entries, "1\n");
}

static void test_files_of_dead_writers_go_after_a_day(void **state)
{
	const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};

	(void)state;
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	write_file(".part/old", "x");
	write_file(".part/new", "x");
	assert_int_equal(utimensat(AT_FDCWD, at(".part/old"), old, 0), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
	assert_int_not_equal(access(at(".part/old"), F_OK), 0);
	assert_int_equal(access(at(".part/new"), F_OK), 0);
}

static void test_an_absent_directory_is_named(void **state)
{
	void *mine = backend;

	(void)state;
	backend = make("no/such");
	must_fail(op_of(KV_REMOTE_HEAD, ""), -ENOTCONN,
		  "no/such: No such file");
	must_fail(op_of(KV_REMOTE_GET, OBJECT), -ENOTCONN, "No such file");
	assert_int_equal(driver->close(backend), 0);
	backend = mine;
}

/* Refuse operations if the backend's directory was moved away or replaced. */
static void test_another_directory_is_not_taken_without_part(void **state)
{
	(void)state;
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
	assert_int_equal(rename(root, away), 0);
	for (int i = 0; i < 20; i++)
		must_fail(put_of(OBJECT, "other", 5), -ENOTCONN, "No such");
	assert_int_equal(mkdir(root, 0700), 0);
	for (int i = 0; i < 20; i++)
		must_fail(op_of(KV_REMOTE_HEAD, OBJECT), -ENOTCONN,
			  "without .part");
	must_fail(op_of(KV_REMOTE_HEAD, ""), -ENOTCONN, "without .part");
	assert_int_equal(mkdir(at(".part"), 0700), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
	/* every thread of the backend notices the rename */
	for (int i = 0; i < 20; i++)
		status_of(KV_REMOTE_HEAD, OBJECT);
	assert_int_equal(status_of(KV_REMOTE_HEAD, OBJECT), -ENOENT);
	tree_remove(root);
	assert_int_equal(rename(away, root), 0);
	for (int i = 0; i < 50; i++)
		status_of(KV_REMOTE_HEAD, OBJECT);
	assert_int_equal(status_of(KV_REMOTE_HEAD, OBJECT), 0);
}

static void test_part_is_made_again(void **state)
{
	(void)state;
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	tree_remove(at(".part"));
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
}

/* A daemon that only reads may use a directory to which it cannot write. */
static void test_a_reader_writes_nothing(void **state)
{
	void *mine = backend;
	char room[8];
	uint64_t n;

	(void)state;
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	tree_remove(at(".part"));
	config.write = KV_WRITEBACK_NONE;
	backend = make(root);
	config.write = KV_WRITEBACK_ALL;
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), 0);
	assert_int_not_equal(access(at(".part"), F_OK), 0);
	assert_int_equal(driver->close(backend), 0);
	backend = mine;
}

/* ---- confinement: paths that lead out of the directory ---- */

static void test_names_do_not_lead_out(void **state)
{
	static const char *const names[] = {"../x/k", "1/../k", "1/2-s/..",
					    "1//k",   "/etc/k", "1/./k",
					    ".part/x"};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(names); i++) {
		must_be_refused(KV_REMOTE_HEAD, names[i], "not a name");
		must_be_refused(KV_REMOTE_PUT, names[i], "not a name");
		must_be_refused(KV_REMOTE_DELETE, names[i], "not a name");
	}
	must_be_refused(KV_REMOTE_DELETE, "", "not a name");
	must_be_refused(KV_REMOTE_DELETE, "/", "not a name");
}

/* Refuse a tenant's folder that is a symbolic link, wherever the link leads. */
static void test_links_as_folders_are_refused(void **state)
{
	(void)state;
	assert_int_equal(put("1001/2-s/" KEY, "bytes", 5), 0);
	assert_int_equal(mkdir(away, 0700), 0);
	assert_int_equal(symlink("1001", at("1002")), 0);
	assert_int_equal(symlink("/proc/self/cwd", at("1003")), 0);
	assert_int_equal(symlink("1004", at("1004")), 0);
	assert_int_equal(mkdir(at("1005"), 0700), 0);
	assert_int_equal(symlink("../1001/2-s", at("1005/2-s")), 0);
	all_are_refused("1002/2-s/" KEY, "1002: ");
	must_be_refused(KV_REMOTE_PUT, "1002/2-s/k", "1002: ");
	must_be_refused(KV_REMOTE_DELETE, "1002/2-s/" KEY, "1002: ");
	must_be_refused(KV_REMOTE_DELETE, "1002/2-s/", "1002: ");
	must_be_refused(KV_REMOTE_PUT, "1003/2-s/k", "1003: ");
	all_are_refused("1004/2-s/k", "1004: ");
	all_are_refused("1005/2-s/" KEY, "2-s: ");
	must_be_refused(KV_REMOTE_DELETE, "1005/2-s/", "2-s: ");
	assert_int_equal(status_of(KV_REMOTE_HEAD, "1001/2-s/" KEY), 0);
}

static void test_a_link_as_an_object_is_refused(void **state)
{
	(void)state;
	assert_int_equal(put("2001/2-s/" KEY, "bytes", 5), 0);
	assert_int_equal(put("2002/2-s/x", "bytes", 5), 0);
	assert_int_equal(symlink("../../2001/2-s/" KEY, at("2002/2-s/" KEY)),
			 0);
	all_are_refused("2002/2-s/" KEY, "a symbolic link");
	/* PUT and DELETE replace and remove the link, not its target. */
	assert_int_equal(put("2002/2-s/" KEY, "other", 5), 0);
	assert_int_equal(unlink(at("2002/2-s/" KEY)), 0);
	assert_int_equal(symlink("../../2001/2-s/" KEY, at("2002/2-s/" KEY)),
			 0);
	assert_int_equal(status_of(KV_REMOTE_DELETE, "2002/2-s/" KEY), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, "2001/2-s/" KEY), 0);
}

/* Refuse objects that are no regular files; opening a FIFO must not block. */
static void test_other_files_are_refused(void **state)
{
	(void)state;
	assert_int_equal(put("1/2-s/k", "bytes", 5), 0);
	assert_int_equal(mkfifo(at("1/2-s/fifo"), 0600), 0);
	assert_int_equal(mkdir(at("1/2-s/dir"), 0700), 0);
	write_file("file", "x");
	for (int i = 0; i < 20; i++)
		must_be_refused(KV_REMOTE_GET, "1/2-s/fifo", "not a file");
	must_be_refused(KV_REMOTE_GET, "1/2-s/dir", "not a file");
	must_be_refused(KV_REMOTE_PUT, "1/2-s/dir", "dir: ");
	must_be_refused(KV_REMOTE_PUT, "file/2-s/k", "file: ");
	must_be_refused(KV_REMOTE_GET, "1/2-s/k/k", "k: ");
}

static void test_a_folder_is_removed_without_following_links(void **state)
{
	(void)state;
	assert_int_equal(put("1001/2-s/" KEY, "bytes", 5), 0);
	assert_int_equal(put("1002/2-s/k", "bytes", 5), 0);
	assert_int_equal(symlink("../../1001", at("1002/2-s/link")), 0);
	assert_int_equal(mkdir(at("1002/2-s/a"), 0700), 0);
	assert_int_equal(symlink("../../1001", at("1002/2-s/a/link")), 0);
	assert_int_equal(status_of(KV_REMOTE_DELETE, "1002/2-s/"), 0);
	assert_int_not_equal(access(at("1002/2-s"), F_OK), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, "1001/2-s/" KEY), 0);
}

static void test_a_directory_of_all_users_is_refused(void **state)
{
	(void)state;
	for (unsigned mode = 0770; mode <= 0777; mode += 7) {
		assert_int_equal(chmod(root, mode), 0);
		must_fail(op_of(KV_REMOTE_HEAD, ""), -EPERM,
			  "others may write to it");
		must_fail(op_of(KV_REMOTE_GET, OBJECT), -EPERM,
			  "remote_unsafe");
	}
	assert_int_equal(chmod(root, 0755), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
}

/* With remote_unsafe, only entries that another user planted are refused. */
static void test_entries_of_other_users_are_refused(void **state)
{
	(void)state;
	if (geteuid() != 0)
		skip();
	driver->close(backend);
	config.unsafe = true;
	backend = make(root);
	assert_int_equal(chmod(root, 0777), 0);
	assert_int_equal(put("1001/2-s/" KEY, "bytes", 5), 0);
	assert_int_equal(mkdir(at("1002"), 0777), 0);
	assert_int_equal(chown(at("1002"), OTHER, OTHER), 0);
	all_are_refused("1002/2-s/" KEY, "belongs to user 1002");
	must_be_refused(KV_REMOTE_PUT, "1002/2-s/k", "belongs to user 1002");
	must_be_refused(KV_REMOTE_DELETE, "1002/2-s/", "belongs to user 1002");
	assert_int_equal(access(at("1002/2-s"), F_OK), -1);
	assert_int_equal(put("1003/2-s/k", "bytes", 5), 0);
	assert_int_equal(chown(at("1003/2-s"), OTHER, OTHER), 0);
	all_are_refused("1003/2-s/k", "belongs to user 1002");
	assert_int_equal(put("1004/2-s/k", "bytes", 5), 0);
	assert_int_equal(chown(at("1004/2-s/k"), OTHER, OTHER), 0);
	all_are_refused("1004/2-s/k", "belongs to user 1002");
	assert_int_equal(put("1004/2-s/k", "bytes", 5), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, "1004/2-s/k"), 0);
	/* Every PUT first writes to the folder .part. */
	assert_int_equal(chown(at(".part"), OTHER, OTHER), 0);
	must_fail(put_of("1001/2-s/k", "bytes", 5), -EIO,
		  ".part: belongs to user 1002");
	assert_int_equal(status_of(KV_REMOTE_HEAD, "1001/2-s/" KEY), 0);
}

/* A user owns the directory, and the daemon runs as root: objects may belong to
 * either. */
static void test_the_owner_of_the_directory_may_own_objects(void **state)
{
	(void)state;
	if (geteuid() != 0)
		skip();
	assert_int_equal(chown(root, OTHER, OTHER), 0);
	assert_int_equal(put("1001/2-s/" KEY, "bytes", 5), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, "1001/2-s/" KEY), 0);
	assert_int_equal(chown(at("1001/2-s/" KEY), OTHER, OTHER), 0);
	assert_int_equal(chown(at("1001"), OTHER, OTHER), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, "1001/2-s/" KEY), 0);
}

/* ---- many removals do not hold up other operations ---- */

static void test_removals_leave_most_threads(void **state)
{
	struct kv_remote_op removals[2 * KV_OPS_THREADS];
	char name[100];

	(void)state;
	sem_init(&let_go, 0, 0);
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	for (unsigned i = 0; i < KV_ARRAY_LEN(removals); i++) {
		snprintf(name, sizeof(name), "%u/2-s/" HELD, i);
		assert_int_equal(put(name, "bytes", 5), 0);
		snprintf(name, sizeof(name), "%u/2-s/", i);
		removals[i] = op_of(KV_REMOTE_DELETE, name);
		kv_ops_submit(backend, &removals[i]);
	}
	for (unsigned i = 0; i < KV_OPS_THREADS; i++)
		assert_int_equal(status_of(KV_REMOTE_HEAD, OBJECT), 0);
	assert_null(kv_ops_reap(backend)); /* no removal has ended */
	for (unsigned i = 0; i < KV_ARRAY_LEN(removals); i++)
		sem_post(&let_go);
	await(KV_ARRAY_LEN(removals));
	for (unsigned i = 0; i < KV_ARRAY_LEN(removals); i++)
		assert_int_equal(removals[i].status, 0);
}

/* Files of one tenant hang: another tenant's operations go on. */
static void test_a_tenant_leaves_half_of_the_threads(void **state)
{
	struct kv_remote_op puts[2 * KV_OPS_THREADS];

	(void)state;
	sem_init(&let_go, 0, 0);
	assert_int_equal(put("2/2-s/" KEY, "bytes", 5), 0);
	for (unsigned i = 0; i < KV_ARRAY_LEN(puts); i++) {
		puts[i] = put_of("1/2-s/" LATE, "bytes", 5);
		kv_ops_submit(backend, &puts[i]);
	}
	for (unsigned i = 0; i < KV_OPS_THREADS; i++)
		assert_int_equal(status_of(KV_REMOTE_HEAD, "2/2-s/" KEY), 0);
	assert_null(kv_ops_reap(backend)); /* no put has ended */
	for (unsigned i = 0; i < KV_ARRAY_LEN(puts); i++)
		sem_post(&let_go);
	await(KV_ARRAY_LEN(puts));
	for (unsigned i = 0; i < KV_ARRAY_LEN(puts); i++)
		assert_int_equal(puts[i].status, 0);
}

/* ---- a directory on a full filesystem ---- */

static void test_a_full_filesystem_is_full_for_puts(void **state)
{
	static uint8_t large[2 << 20];
	void *mine = backend;

	(void)state;
	if (mkdir(away, 0700) < 0 ||
	    mount("kvfs-test", away, "tmpfs", 0, "size=1m,mode=0700") < 0)
		skip();
	backend = make(away);
	assert_int_equal(put("1/2-s/k", "bytes", 5), 0);
	must_fail(put_of("1/2-s/large", large, sizeof(large)), -ENOSPC,
		  "No space left");
	assert_int_equal(status_of(KV_REMOTE_HEAD, "1/2-s/large"), -ENOENT);
	/* the failed PUT has left nothing behind */
	assert_int_equal(put("1/2-s/k2", "bytes", 5), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, "1/2-s/k"), 0);
	assert_int_equal(
		mount("none", away, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	must_fail(put_of("1/2-s/k", "bytes", 5), -ENOSPC, "Read-only");
	assert_int_equal(status_of(KV_REMOTE_HEAD, "1/2-s/k"), 0);
	assert_int_equal(driver->close(backend), 0);
	backend = mine;
	assert_int_equal(umount2(away, MNT_DETACH), 0);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest one[] = {BACKEND_TESTS, REPLACE_TEST};
	const struct CMUnitTest tests[] = {
		WITH(test_a_cut_file_is_damaged),
		WITH(test_only_its_user_reads_it),
		WITH(test_a_put_leaves_nothing_but_the_object),
		WITH(test_files_of_dead_writers_go_after_a_day),
		WITH(test_an_absent_directory_is_named),
		WITH(test_another_directory_is_not_taken_without_part),
		WITH(test_part_is_made_again),
		WITH(test_a_reader_writes_nothing),
		WITH(test_names_do_not_lead_out),
		WITH(test_links_as_folders_are_refused),
		WITH(test_a_link_as_an_object_is_refused),
		WITH(test_other_files_are_refused),
		WITH(test_a_folder_is_removed_without_following_links),
		WITH(test_a_directory_of_all_users_is_refused),
		WITH(test_entries_of_other_users_are_refused),
		WITH(test_the_owner_of_the_directory_may_own_objects),
		WITH(test_removals_leave_most_threads),
		WITH(test_a_tenant_leaves_half_of_the_threads),
		WITH(test_a_full_filesystem_is_full_for_puts),
	};
	int failed = cmocka_run_group_tests(one, set_up, tear_down);

	return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
