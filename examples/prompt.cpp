// SPDX-License-Identifier: Apache-2.0
// prompt.cpp - the blocks of a prompt: what the cache has is loaded, the rest
// is computed and saved.  kvfs_reap reports the end of each transfer with the
// number (kvfs_opts.user) that the transfer was begun with.
//
//   c++ -std=c++17 examples/prompt.cpp -o prompt $(pkg-config --cflags --libs kvfs)
//   ./prompt /kvfs
#include <kvfs.h>

#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace
{

constexpr size_t tokens_per_block = 16, block_bytes = 65536, blocks = 8;
constexpr uint64_t loaded_word = 1, saved_word = 2;
const char layout[] = R"({"tensors": [{"name": "kv", "dtype": "BF16",
	"shape": [4, 2, 16, 2, 128]}], "tokens": 16, "layers": 0})";

long check(const char *what, long r)
{
	if (r < 0)
		throw std::runtime_error(std::string(what) + ": " +
					 std::strerror(static_cast<int>(-r)));
	return r;
}

// A handle of the library's, with the function that ends it.
template <auto end> struct Ends {
	template <typename T> void operator()(T *handle) const
	{
		end(handle);
	}
};
using Session = std::unique_ptr<kvfs_session, Ends<kvfs_close>>;
using Space = std::unique_ptr<kvfs_space, Ends<kvfs_space_close>>;
using Pool = std::unique_ptr<kvfs_pool, Ends<kvfs_pool_close>>;
using Lease = std::unique_ptr<kvfs_lease, Ends<kvfs_release>>;
using Xfer = std::unique_ptr<kvfs_xfer, Ends<kvfs_xfer_free>>;

// Wait for @stage of the transfer numbered @word.  Return how many blocks reached it.
int64_t wait_for(kvfs_session *session, uint64_t word, uint32_t stage)
{
	pollfd fd = {static_cast<int>(check("fd", kvfs_fd(session))), POLLIN,
		     0};
	kvfs_event event;

	for (;;) {
		while (check("reap", kvfs_reap(session, &event, 1)) == 1)
			if (event.user == word && event.stage == stage)
				return event.result;
		poll(&fd, 1, -1);
	}
}

int run(const char *path)
{
	std::vector<uint8_t> memory(blocks * block_bytes);
	std::vector<uint32_t> tokens(blocks * tokens_per_block);
	std::vector<int64_t> pages(blocks);
	std::vector<kvfs_key> keys(blocks);
	kvfs_session *session_;
	kvfs_space *space_;
	kvfs_pool *pool_;
	kvfs_lease *lease_;
	kvfs_xfer *xfer_;

	std::iota(tokens.begin(), tokens.end(), 0u);
	std::iota(pages.begin(), pages.end(), 0);
	check("open", kvfs_open(path, &session_));
	Session session(session_);
	if (kvfs_connected(session.get()) != 1)
		throw std::runtime_error(std::string("no kvfs answers at ") +
					 path);
	check("space", kvfs_space_open(session.get(), "example.cpp", layout,
				       KVFS_CREATE, &space_));
	Space space(space_);

	kvfs_view view{};
	view.tensor = "kv";
	view.base = memory.data();
	view.block_stride = view.bytes = block_bytes;
	view.count = 1;
	kvfs_pool_desc desc = KVFS_POOL_DESC_INIT;
	desc.device = "host";
	desc.space = space.get();
	desc.views = &view;
	desc.n_views = 1;
	desc.pages = blocks;
	desc.pages_per_block = 1;
	check("pool", kvfs_pool_register(session.get(), &desc, &pool_));
	Pool pool(pool_);

	check("keys",
	      kvfs_key_chain(space.get(), nullptr, tokens.data(), tokens.size(),
			     nullptr, 0, keys.data(), keys.size()));
	kvfs_query query{};
	query.space = space.get();
	query.keys = keys.data();
	query.n = keys.size();
	size_t hit = static_cast<size_t>(
			     check("match", kvfs_match_tokens(&query, 1))) /
		     tokens_per_block;
	query.n = hit;
	check("acquire", kvfs_acquire(&query, 1, nullptr, &lease_));
	Lease lease(lease_);
	kvfs_opts opts = KVFS_OPTS_INIT;
	opts.user = loaded_word;
	check("load", kvfs_load(pool.get(), lease.get(), hit, pages.data(),
				&opts, &xfer_));
	Xfer load(xfer_);
	int64_t loaded = wait_for(session.get(), loaded_word, KVFS_COPIED);

	// Stand-in for the model.
	for (size_t i = hit; i < blocks; i++)
		std::memset(&memory[i * block_bytes], static_cast<int>(i + 1),
			    block_bytes);
	std::vector<kvfs_meta> meta(blocks);
	for (size_t i = 0; i < blocks; i++) {
		meta[i].position = static_cast<uint32_t>(i);
		if (i > 0)
			meta[i].parent = keys[i - 1];
	}
	opts.user = saved_word;
	check("save", kvfs_save(pool.get(), space.get(), keys.data() + hit,
				meta.data() + hit, blocks - hit,
				pages.data() + hit, &opts, &xfer_));
	Xfer save(xfer_);
	int64_t saved = wait_for(session.get(), saved_word, KVFS_SEALED);
	for (size_t i = 0; i < blocks; i++)
		if (memory[i * block_bytes] != i + 1)
			throw std::runtime_error("wrong bytes");
	if (loaded + saved != static_cast<int64_t>(blocks))
		throw std::runtime_error("not all blocks were saved");
	std::printf("%lld blocks loaded, %lld saved\n",
		    static_cast<long long>(loaded),
		    static_cast<long long>(saved));
	return 0;
}

} // namespace

int main(int argc, char **argv)
try {
	return run(argc > 1 ? argv[1] : "/kvfs");
} catch (const std::exception &error) {
	std::fprintf(stderr, "%s\n", error.what());
	return 1;
}
