/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of a daemon to libkvfs: a session makes its calls while a thread
 * answers each message with the next packet of the input, and closes the
 * connection at the end of the input.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "kernels/kvfs.h"
#include "kernels/session/rpc.h"
#include "tests/fuzz/fuzz.h"

#define SLOTS 8
#define BLOCKS 4
#define TENSOR 4096u
#define WAIT 2000000000u

static const char layout[] =
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[4096]}],"
	"\"seed\":\"0000000000000001\",\"tokens\":4}";

static char directory[] = "/tmp/kvfs-fuzz-reply-XXXXXX";
static char path[64];
static int listener, wake[2];
static pthread_t daemon_thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fuzz script; /* lock */

static int segment(unsigned seals)
{
	int fd = memfd_create("fuzz", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	fuzz_must(fd >= 0 && ftruncate(fd, 1 << 20) == 0);
	fuzz_must(fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

/*
 * Answer a message, as the next byte of the input says by its bits: 1 the right
 * header, with count and status from the input; 2 more packets for this
 * message; 4 with a sealed memfd; 8 with a memfd that may shrink.  Return true
 * if there is more to send.
 */
static bool answer_with(int socket, const struct kv_packet *request,
			struct fuzz *f)
{
	unsigned how = fuzz_byte(f);
	struct kv_packet reply = {.header = request->header, .fd = -1};
	_cleanup_(kv_freep) uint8_t *items = NULL;
	size_t n = fuzz_u16(f);

	if (how & 12)
		reply.fd = segment(how & 4 ? F_SEAL_SHRINK : 0);
	if (how & 1) {
		reply.header.flags = WIRE_REPLY;
		reply.header.count = fuzz_u16(f);
		reply.header.status = (int8_t)fuzz_byte(f);
		items = fuzz_take(f, n, &n);
		reply.items = items;
		reply.bytes = n;
	} else {
		items = fuzz_take(f, n, &n);
		memcpy(&reply.header, items, KV_MIN(n, sizeof(reply.header)));
		reply.items = items + KV_MIN(n, sizeof(reply.header));
		reply.bytes = n - KV_MIN(n, sizeof(reply.header));
	}
	kv_link_send(socket, &reply, MSG_DONTWAIT);
	kv_closep(&reply.fd);
	return how & 2;
}

/* Answer one message.  Return false to hang up. */
static bool answer(int socket)
{
	static uint8_t items[WIRE_MAX];
	struct kv_packet packet = {.items = items, .bytes = sizeof(items)};
	struct wire_hello hello = {.version = WIRE_VERSION, .epoch = 1};
	struct kv_packet reply = {
		.items = &hello, .bytes = sizeof(hello), .fd = -1};
	bool more;

	if (kv_link_receive(socket, &packet, MSG_DONTWAIT) < 0)
		return false;
	kv_closep(&packet.fd);
	if (packet.header.type == WIRE_HELLO) {
		reply.header = packet.header;
		reply.header.flags = WIRE_REPLY;
		return kv_link_send(socket, &reply, 0) == 0;
	}
	pthread_mutex_lock(&lock);
	more = script.left > 0;
	while (more && script.left)
		more = answer_with(socket, &packet, &script);
	more = script.left > 0;
	pthread_mutex_unlock(&lock);
	return more;
}

static void *serve(void *arg)
{
	struct pollfd fds[SLOTS] = {{.fd = wake[0], .events = POLLIN},
				    {.fd = listener, .events = POLLIN}};
	nfds_t n = 2;

	(void)arg;
	while (poll(fds, n, -1) > 0 && !fds[0].revents) {
		for (nfds_t i = 2; i < n; i++)
			if (fds[i].revents && !answer(fds[i].fd)) {
				close(fds[i].fd);
				fds[i--] = fds[--n];
			}
		if (!fds[1].revents)
			continue;
		if (n == SLOTS)
			close(fds[--n].fd);
		fds[n++] = (struct pollfd){
			.fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC),
			.events = POLLIN};
	}
	while (n > 2)
		close(fds[--n].fd);
	return NULL;
}

static void stop(void)
{
	fuzz_must(write(wake[1], "", 1) == 1);
	pthread_join(daemon_thread, NULL);
	close(listener);
	close(wake[0]);
	close(wake[1]);
	unlink(path);
	rmdir(directory);
}

static void start(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	fuzz_must(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/control", directory);
	strcpy(a.sun_path, path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	fuzz_must(bind(listener, (struct sockaddr *)&a, sizeof(a)) == 0);
	fuzz_must(listen(listener, SLOTS) == 0);
	fuzz_must(pipe(wake) == 0);
	fuzz_must(pthread_create(&daemon_thread, NULL, serve, NULL) == 0);
	atexit(stop);
}

/* Check that every leased block can be read. */
static void read_lease(kvfs_lease *lease)
{
	volatile uint8_t sink = 0;
	const uint8_t *data;
	uint64_t bytes;

	for (size_t i = 0; i < BLOCKS; i++) {
		data = kvfs_lease_file(lease, i, &bytes);
		for (uint64_t at = 0; data && at < bytes; at += 64)
			sink = (uint8_t)(sink + data[at]);
		data = kvfs_lease_data(lease, i, &bytes);
		if (data && bytes)
			sink = data[bytes - 1];
	}
}

static void load(kvfs_pool *pool, kvfs_query *query)
{
	const int64_t pages[BLOCKS] = {0, 1, 2, 3};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	if (kvfs_acquire(query, 1, KVFS_OPTS(.deadline = WAIT), &lease) < 0)
		return;
	kvfs_lease_wait(lease, WAIT);
	read_lease(lease);
	if (pool && kvfs_load(pool, lease, BLOCKS, pages, NULL, &xfer) == 0) {
		kvfs_xfer_wait(xfer, KVFS_COPIED, WAIT);
		kvfs_xfer_free(xfer);
	}
	kvfs_release(lease);
}

static void save(kvfs_pool *pool, kvfs_query *query)
{
	const int64_t pages[BLOCKS] = {0, 1, 2, 3};
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = WAIT};
	kvfs_xfer *xfer;

	if (kvfs_save(pool, query->space, query->keys, NULL, BLOCKS, pages,
		      &opts, &xfer) == 0) {
		kvfs_xfer_wait(xfer, KVFS_SEALED, WAIT);
		kvfs_xfer_free(xfer);
	}
}

static void ask(kvfs_session *session, kvfs_query *query)
{
	uint8_t states[BLOCKS];
	int statuses[BLOCKS];
	kvfs_xfer *xfer;
	char *text;

	kvfs_probe(query, 1, states);
	fuzz_must(kvfs_match(query, 1) <= BLOCKS);
	if (kvfs_stats(session, &text) == 0)
		free(text);
	kvfs_pin(query->space, query->keys, 0, BLOCKS, statuses);
	kvfs_evict(query->space, query->keys, BLOCKS, statuses);
	if (kvfs_flush(query->space, KVFS_DURABLE, NULL, &xfer) == 0) {
		kvfs_xfer_wait(xfer, KVFS_DURABLE, WAIT);
		kvfs_xfer_free(xfer);
	}
}

static void use(kvfs_session *session, kvfs_space *space, unsigned order)
{
	static uint8_t memory[BLOCKS * TENSOR];
	kvfs_view view = {"k", memory, TENSOR, TENSOR, 1, 0};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .space = space,
			       .views = &view,
			       .n_views = 1,
			       .pages = BLOCKS,
			       .pages_per_block = 1};
	kvfs_key keys[BLOCKS] = {{.len = 16},
				 {.bytes = "1", .len = 16},
				 {.bytes = "2", .len = 16},
				 {.bytes = "3", .len = 16}};
	kvfs_query query = {space, keys, BLOCKS};
	kvfs_pool *pool = NULL;

	kvfs_pool_register(session, &desc, &pool);
	if (order & 1)
		ask(session, &query);
	load(pool, &query);
	if (pool && (order & 2))
		save(pool, &query);
	load(pool, &query);
	kvfs_pool_close(pool);
}

/* Input: a byte that selects the calls (1 look-ups, 2 saves, 4 with the layout
 * of the daemon), then the daemon's answers. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {data, size};
	unsigned order = fuzz_byte(&f);
	kvfs_session *session;
	kvfs_space *space;

	if (!listener)
		start();
	pthread_mutex_lock(&lock);
	script = f;
	pthread_mutex_unlock(&lock);
	fuzz_must(kvfs_open(path, &session) == 0);
	if (kvfs_space_open(session, "s", order & 4 ? NULL : layout, 0,
			    &space) == 0) {
		use(session, space, order);
		kvfs_space_close(space);
	}
	kvfs_close(session);
	pthread_mutex_lock(&lock);
	script = (struct fuzz){0};
	pthread_mutex_unlock(&lock);
	return 0;
}
