/* SPDX-License-Identifier: Apache-2.0 */
/* Spaces: how they are opened, layouts, and a daemon with a new store. */
#include <malloc.h>

#include "tests/kernels/world.h"

#define OTHER "{\"tensors\":[{\"name\":\"x\",\"dtype\":\"F32\",\"shape\":[8]}]}"

static int try_open(struct world *w, const char *name, const char *layout,
		    unsigned flags)
{
	kvfs_space *space;
	int r = kvfs_space_open(w->session, name, layout, flags, &space);

	if (r == 0)
		kvfs_space_close(space);
	return r;
}

static void names_and_flags_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	char name[300];

	memset(name, 'n', sizeof(name));
	name[256] = '\0';
	assert_int_equal(try_open(w, NULL, NULL, 0), -EINVAL);
	assert_int_equal(try_open(w, "", NULL, 0), -EINVAL);
	assert_int_equal(try_open(w, ".kvfs", NULL, 0), -EINVAL);
	assert_int_equal(try_open(w, "a/b", NULL, 0), -EINVAL);
	assert_int_equal(try_open(w, name, NULL, 0), -EINVAL);
	assert_int_equal(try_open(w, "a", NULL, 01777 | KVFS_CREATE), 0);
	assert_int_equal(try_open(w, "a", NULL, KVFS_SHARED | KVFS_CREATE), 0);
	assert_int_equal(try_open(w, "a", NULL, 04000), -EINVAL);
	assert_int_equal(kvfs_space_open(w->session, "a", NULL, 0, NULL),
			 -EINVAL);
}

static void what_the_daemon_refuses_is_refused(void **state)
{
	struct world *w = *state;

	assert_int_equal(try_open(w, "absent", NULL, 0), -ENOENT);
	assert_int_equal(try_open(w, "absent", OTHER, 0), -ENOENT);
	assert_int_equal(try_open(w, w->space_name, OTHER, 0), -EEXIST);
	assert_int_equal(try_open(w, "new", "{}", KVFS_CREATE), -EINVAL);
	assert_int_equal(try_open(w, w->space_name, NULL, 0), 0);
	assert_int_equal(try_open(w, w->space_name, WORLD_LAYOUT, KVFS_CREATE),
			 0);
}

static void the_owner_is_known_once_a_daemon_was_asked(void **state)
{
	struct world *w = *state;
	kvfs_session *alone;
	kvfs_space *space;
	uint32_t uid = 1, mode = 2;

	assert_int_equal(kvfs_space_owner(NULL, &uid, &mode), -EINVAL);
	assert_int_equal(kvfs_open("/nowhere/at/all", &alone), 0);
	assert_int_equal(
		kvfs_space_open(alone, "s", WORLD_LAYOUT, KVFS_CREATE, &space),
		0);
	assert_int_equal(kvfs_space_owner(space, &uid, &mode), -ENOTCONN);
	assert_int_equal(uid, 1);
	assert_int_equal(mode, 2);
	kvfs_space_close(space);
	kvfs_close(alone);

	assert_int_equal(kvfs_space_open(w->session, "owned", NULL,
					 KVFS_CREATE | 0750, &space),
			 0);
	assert_int_equal(kvfs_space_owner(space, NULL, NULL), 0);
	assert_int_equal(kvfs_space_owner(space, &uid, &mode), 0);
	assert_int_equal(uid, geteuid());
	assert_int_equal(mode, 0750);
	kvfs_space_close(space);
}

static void the_layout_is_canonical_and_the_same_for_all(void **state)
{
	struct world *w = *state;
	kvfs_space *again;

	assert_int_equal(kvfs_space_payload(w->space), PAYLOAD);
	assert_non_null(strstr(kvfs_space_layout(w->space), "\"seed\""));
	assert_int_equal(
		kvfs_space_open(w->session, w->space_name, NULL, 0, &again), 0);
	assert_string_equal(kvfs_space_layout(again),
			    kvfs_space_layout(w->space));
	kvfs_space_close(again);
}

static void an_untyped_space_has_no_layout_and_no_pool(void **state)
{
	struct world *w = *state;
	kvfs_view view = {"k", w->memory, 8, 8, 1, 0};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .views = &view,
			       .n_views = 1,
			       .pages = 1,
			       .pages_per_block = 1};
	kvfs_pool *pool;
	kvfs_space *space;
	kvfs_key key;
	uint32_t token = 1;

	assert_int_equal(kvfs_space_open(w->session, "untyped", NULL,
					 KVFS_CREATE, &space),
			 0);
	assert_null(kvfs_space_layout(space));
	assert_int_equal(kvfs_space_payload(space), 0);
	assert_int_equal(
		kvfs_key_chain(space, NULL, &token, 1, NULL, 0, &key, 1),
		-EINVAL);
	desc.space = space;
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool),
			 -EMEDIUMTYPE);
	kvfs_space_close(space);
}

static void the_seed_is_the_daemons_and_keys_agree_between_sessions(void **s)
{
	struct world *w = *s;
	const uint32_t tokens[4] = {1, 2, 3, 4};
	kvfs_session *session;
	kvfs_space *space;
	kvfs_key a, b;

	assert_int_equal(
		kvfs_key_chain(w->space, NULL, tokens, 4, NULL, 0, &a, 1), 1);
	assert_int_equal(kvfs_open(w->path, &session), 0);
	assert_int_equal(kvfs_space_open(session, w->space_name, WORLD_LAYOUT,
					 0, &space),
			 0);
	assert_int_equal(kvfs_key_chain(space, NULL, tokens, 4, NULL, 0, &b, 1),
			 1);
	assert_memory_equal(&a, &b, sizeof(a));
	kvfs_space_close(space);
	kvfs_close(session);
}

static void a_space_opened_before_is_known_after_a_restart(void **state)
{
	struct world *w = *state;
	char *layout = strdup(kvfs_space_layout(w->space));

	world_save(w, 2);
	world_stop_daemon(w, SIGTERM);
	world_wait_connected(w->session, 0);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	kvfs_release(world_acquire(w, 2, 2));
	assert_string_equal(kvfs_space_layout(w->space), layout);
	free(layout);
}

static void a_space_closed_early_stays_for_what_uses_it(void **state)
{
	struct world *w = *state;
	int64_t page = 0;
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 1);
	lease = world_acquire(w, 1, 1);
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, NULL, &xfer), 0);
	kvfs_space_close(kv_steal(w->space));
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SECOND), 1);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
	kvfs_space_close(NULL);
}

#define LARGER                                                                \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[131072]}," \
	"{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[65536]}]}"

/* Save one block, and return its status. */
static int save_one(struct world *w, bool hangs)
{
	kvfs_key key = world_key(0);
	int64_t page = 0;
	kvfs_xfer *xfer;
	int r;

	if (hangs)
		world_freeze(w);
	r = kvfs_save(w->pool, w->space, &key, NULL, 1, &page, NULL, &xfer);
	world_thaw(w);
	if (r < 0)
		return r;
	kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND);
	r = kvfs_xfer_status(xfer, 0);
	kvfs_xfer_free(xfer);
	return r;
}

/* Another client removes the space and makes it again with @layout.  The next
 * save learns that the space is another one, and the save after it fails with
 * @status, because its blocks do not fit.  @hangs: the daemon hangs when that
 * save begins, and tells of the layout later. */
static void remake_and_save(struct world *w, const char *layout, bool hangs,
			    int status)
{
	kvfs_session *session;
	kvfs_space *owners;
	uint64_t cursor = 0;
	kvfs_key keys[64];

	kvfs_space_close(kv_steal(w->space));
	world_space_open(w->session, w->space_name, NULL, 0, &w->space);
	assert_int_equal(save_one(w, false), 0);
	assert_int_equal(kvfs_open(w->path, &session), 0);
	world_space_open(session, w->space_name, NULL, 0, &owners);
	assert_int_equal(kvfs_space_remove(owners), 0);
	kvfs_space_close(owners);
	world_space_open(session, w->space_name, layout, KVFS_CREATE | 0700,
			 &owners);
	assert_true(save_one(w, false) < 0);
	assert_int_equal(save_one(w, hangs), status);
	assert_int_equal(kvfs_space_keys(owners, &cursor, keys, 64), 0);
	kvfs_space_close(owners);
	kvfs_close(session);
}

static void a_save_to_a_space_made_again_with_another_type_fails(void **state)
{
	remake_and_save(*state,
			"{\"tensors\":["
			"{\"name\":\"k\",\"dtype\":\"I8\",\"shape\":[65536]},"
			"{\"name\":\"v\",\"dtype\":\"I8\",\"shape\":[65536]}]}",
			false, -EINVAL);
}

static void a_save_to_a_space_made_again_with_larger_blocks_fails(void **state)
{
	remake_and_save(*state, LARGER, false, -EINVAL);
}

static void a_save_that_learns_late_of_larger_blocks_fails(void **state)
{
	remake_and_save(*state, LARGER, true, -ESTALE);
}

/* ---- a space that is cleared under saves and acquires ---- */

#define CLEAR_NS (2 * SECOND)

struct churn {
	struct world *w;
	uint64_t until;
};

static void *save_often(void *arg)
{
	struct churn *c = arg;
	kvfs_key keys[8];
	int64_t pages[8];
	kvfs_xfer *xfers[16];

	for (uint32_t i = 0; kv_now_ns() < c->until; i += 8 * 16) {
		for (uint32_t k = 0; k < 16; k++) {
			world_chain(i + k * 8, 8, keys, pages);
			assert_int_equal(kvfs_save(c->w->pool, c->w->space,
						   keys, NULL, 8, pages, NULL,
						   &xfers[k]),
					 0);
		}
		for (uint32_t k = 0; k < 16; k++) {
			kvfs_xfer_wait(xfers[k], KVFS_SEALED, 20 * SECOND);
			kvfs_xfer_free(xfers[k]);
		}
	}
	return NULL;
}

static void *clear_often(void *arg)
{
	struct churn *c = arg;
	kvfs_session *session;
	kvfs_space *space;

	assert_int_equal(kvfs_open(c->w->path, &session), 0);
	world_space_open(session, c->w->space_name, NULL, 0, &space);
	while (kv_now_ns() < c->until)
		assert_int_equal(kvfs_space_clear(space), 0);
	kvfs_space_close(space);
	kvfs_close(session);
	return NULL;
}

/* The reply to a save that was cleared (ESTALE) makes the library forget the
 * space's id.  An acquire that has just got the id from the daemon does not end
 * with ENOTCONN because of that. */
static void an_acquire_beside_saves_that_are_cleared_is_answered(void **state)
{
	struct churn c = {.w = *state, .until = kv_now_ns() + CLEAR_NS};
	kvfs_key key = world_key(7);
	kvfs_query query = {c.w->space, &key, 1};
	pthread_t threads[2];
	kvfs_lease *lease;
	int status;

	/* Let free(3) unmap the reply about the space, which makes the library
	 * slow at this point. */
	mallopt(M_MMAP_THRESHOLD, 4096);
	pthread_create(&threads[0], NULL, save_often, &c);
	pthread_create(&threads[1], NULL, clear_often, &c);
	while (kv_now_ns() < c.until) {
		assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
		kvfs_lease_wait(lease, KVFS_FOREVER);
		status = kvfs_lease_status(lease, 0);
		assert_true(status == 0 || status == -ENOENT);
		kvfs_release(lease);
	}
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(names_and_flags_that_cannot_be_are_refused),
		test(what_the_daemon_refuses_is_refused),
		test(an_untyped_space_has_no_layout_and_no_pool),
		test(the_owner_is_known_once_a_daemon_was_asked),
		test(the_layout_is_canonical_and_the_same_for_all),
		test(the_seed_is_the_daemons_and_keys_agree_between_sessions),
		test(a_space_opened_before_is_known_after_a_restart),
		test(a_space_closed_early_stays_for_what_uses_it),
		test(a_save_to_a_space_made_again_with_another_type_fails),
		test(a_save_to_a_space_made_again_with_larger_blocks_fails),
		test(a_save_that_learns_late_of_larger_blocks_fails),
		test(an_acquire_beside_saves_that_are_cleared_is_answered),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
