/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of clients: packets with and without descriptors, on two connections to the
 * control server, which runs in this thread on a cache without a store.
 */
#include <sys/epoll.h>

#include "fs/control/server.h"
#include "tests/fs/peer.h"
#include "tests/cache/wait.h"
#include "tests/fuzz/fuzz.h"

#define PEERS 2
/* number of spaces that inputs may make before the cache is made anew */
#define SPACES_MAX 200

static const char layout[] =
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[512]}]}";

static struct kv_server server;
/* Rules that give the only user of this test all rights. */
static struct kv_rules rules;
static struct kv_watch on_mail;
static struct peer peers[PEERS];
/* clients that may be freed already: compare the pointers only */
static struct kv_client *clients[PEERS];

static void run_mail(struct kv_watch *watch, uint32_t events)
{
	(void)watch;
	(void)events;
	kv_mailbox_run(&server.mailbox);
}

static void make_cache(void)
{
	struct kv_cache_config config = {.dram = 16 << 20,
					 .segment = 8 << 20,
					 .hugepages = KV_HUGE_OFF,
					 .evict = "lru"};
	struct kv_space *space;
	char *why = NULL;

	fuzz_must(kv_cache_open(&config, &server.cache, &why) == 0);
	fuzz_must(kv_space_create(server.cache, "s", 0, 0, 0755, &space) == 0);
	fuzz_must(kv_space_set_layout(server.cache, space, 0, layout,
				      strlen(layout)) == 0);
	fuzz_must(kv_space_create(server.cache, "t", 0, 0, 0755, &space) == 0);
}

static void start(void)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = &on_mail};

	TAILQ_INIT(&server.clients);
	TAILQ_INIT(&server.ended);
	on_mail.ready = run_mail;
	server.rules = &rules;
	make_cache();
	fuzz_must(kv_gate_start(&server.gate) == 0);
	fuzz_must(kv_users_init(&server) == 0);
	fuzz_must(kv_mailbox_init(&server.mailbox) == 0);
	server.epoll = epoll_create1(EPOLL_CLOEXEC);
	kv_gate_open(server.gate, server.epoll);
	fuzz_must(epoll_ctl(server.epoll, EPOLL_CTL_ADD, server.mailbox.fd,
			    &event) == 0);
	fuzz_must(kv_server_start_workers(&server) == 0);
}

/* Check that every message of the daemon is one that the library accepts. */
static void read_replies(struct peer *p)
{
	const struct wire_header *header = PEER_HEADER(p);
	ssize_t n;

	while (p->fd >= 0 && (n = peer_receive(p, 0)) > 0) {
		fuzz_must((size_t)n >= sizeof(*header));
		fuzz_must(header->type < WIRE_TYPE_END);
		if (header->flags == WIRE_REPLY)
			continue;
		fuzz_must(header->flags == 0 && header->tag == 0);
		fuzz_must((header->type == WIRE_SEGMENT && p->in_fd >= 0) ||
			  header->type == WIRE_RETIRE);
	}
}

/* Run the control thread's loop once.  Return true if there was work. */
static bool turn(int wait_ms)
{
	struct epoll_event events[16];
	struct kv_watch *watch;
	uint64_t next;
	bool busy;
	int n;

	kv_requests_expire(&server, &next);
	n = epoll_wait(server.epoll, events, 16, wait_ms);
	for (int i = 0; i < n; i++) {
		watch = events[i].data.ptr;
		watch->ready(watch, events[i].events);
	}
	busy = kv_users_serve(&server);
	kv_client_sweep(&server);
	for (size_t i = 0; i < PEERS; i++)
		read_replies(&peers[i]);
	return n > 0 || busy;
}

static void serve(void)
{
	while (turn(kv_gate_is_busy(server.gate) ? 1000 : 0) ||
	       kv_gate_is_busy(server.gate))
		;
}

static void connect_peer(size_t i)
{
	int pair[2];

	fuzz_must(socketpair(AF_UNIX,
			     SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
			     pair) == 0);
	peers[i].fd = pair[0];
	fuzz_must(kv_client_new(&server, pair[1], &clients[i]) == 0);
}

static void hang_up(size_t i)
{
	kv_closep(&peers[i].fd);
	kv_closep(&peers[i].in_fd);
	peers[i].fd = peers[i].in_fd = -1;
	clients[i] = NULL;
}

static int memory(unsigned seals)
{
	int fd = memfd_create("fuzz", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	fuzz_must(fd >= 0 && ftruncate(fd, 65536) == 0);
	fuzz_must(fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static int descriptor(unsigned how)
{
	switch (how) {
	case 4:
	case 7:
		return memory(F_SEAL_SHRINK);
	case 5:
		return memory(0);
	case 6:
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	default:
		return -1;
	}
}

static void retire(size_t i, uint32_t segment)
{
	struct kv_client *client;

	TAILQ_FOREACH(client, &server.clients, link)
		if (client == clients[i])
			kv_client_retire(client, segment);
}

/* In an input, version 1 stands for the current version of the protocol, so
 * that inputs stay useful. */
static void bring_up_to_date(uint8_t *packet, size_t n)
{
	struct {
		struct wire_header header;
		struct wire_hello hello;
	} m;

	if (n < sizeof(m))
		return;
	memcpy(&m, packet, sizeof(m));
	if (m.header.type != WIRE_HELLO || m.hello.version != 1)
		return;
	m.hello.version = WIRE_VERSION;
	memcpy(packet, &m, sizeof(m));
}

/*
 * Send one packet.  Input: bits (7 the kind of descriptor, 8 wait for pending requests, 16
 * the connection, 32 a new connection, 64 the daemon retires a segment), the length, the
 * packet.
 */
static void send_one(struct fuzz *f)
{
	unsigned how = fuzz_byte(f);
	_cleanup_(kv_closep) int fd = descriptor(how & 7);
	size_t i = how & 16 ? 1 : 0, n = fuzz_u16(f);
	_cleanup_(kv_freep) uint8_t *packet = fuzz_take(f, n, &n);

	bring_up_to_date(packet, n);
	if (how & 32)
		hang_up(i);
	if (peers[i].fd < 0)
		connect_peer(i);
	if (how & 64)
		retire(i, (uint32_t)n);
	peer_raw(&peers[i], packet, n, fd, fd < 0 ? 0 : (how & 7) / 7 + 1);
	serve();
	for (int turns = 0; how & 8 && server.pending && turns < 5; turns++)
		turn(1);
}

/* All clients have left: check that nothing is held, and make the spaces anew. */
static void clean_up(void)
{
	struct kv_cache_stats stats;
	struct kv_space *space = NULL;
	uint32_t id = 0;

	for (size_t i = 0; i < PEERS; i++)
		hang_up(i);
	/* Clients end on other threads and processes, which may be slow. */
	for (unsigned turns = 0; turns < 3000; turns++) {
		serve();
		kv_cache_stats(server.cache, &stats);
		if (!server.pending && TAILQ_EMPTY(&server.clients) &&
		    server.deadlines.n == 0 && stats.leases == 0 &&
		    stats.saving == 0)
			break;
		turn(10);
	}
	fuzz_must(TAILQ_EMPTY(&server.clients) && server.deadlines.n == 0);
	fuzz_must(stats.leases == 0 && stats.saving == 0);
	while ((space = kv_space_next(server.cache, id))) {
		id = kv_space_stat(server.cache, space).id;
		fuzz_must(kv_space_clear(server.cache, space) == 0);
		if (id > 2)
			fuzz_must(kv_space_remove(server.cache, space) == 0);
	}
	if (kv_space_by_id(server.cache, SPACES_MAX)) {
		kv_cache_close(server.cache);
		make_cache();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {data, size};

	if (!server.cache) {
		start();
		for (size_t i = 0; i < PEERS; i++)
			peers[i].fd = peers[i].in_fd = -1;
	}
	while (f.left)
		send_one(&f);
	clean_up();
	return 0;
}
