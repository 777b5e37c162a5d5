# SPDX-License-Identifier: Apache-2.0
# Tests of the CUDA device: a driver for machines without one (never installed),
# and what is needed to run the same on a machine with a GPU.
STANDIN    := $(wildcard tests/gpu/standin/*.c)
GPU_UNIT   := $(filter $B/tests/gpu/%,$(UNIT)) $B/tests/gpu/bench $B/tests/gpu/probe
GPU_MAP    := tests/gpu/standin/standin.map
GPU_BUNDLE := $B/kvfs-gpu.tar.xz
GPU_DENIED := $B/tests/gpu/denied/libcuda.so.1
GPU_OWN    := $B/tests/gpu/bundle/kvfs $B/tests/gpu/bundle/libkvfs.so
GPU_PLUGIN := $B/tests/gpu/libkvfs-present.so.1
SCRIPTS    += tests/gpu/test_bundle.sh tests/gpu/test_modes.sh tests/gpu/test_text.sh
GPU_THREAD := $B/tests/gpu/libkvfs-threaded.so.1
SOURCES    += $(STANDIN) tests/gpu/denied/denied.c $(wildcard tests/gpu/plugin/*.c)

$B/tests/gpu/libcuda.so.1: $(call objs,$(STANDIN)) $(GPU_MAP)
	$(call run,LINK)$(CC) $(LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -Wl,--version-script=$(GPU_MAP) $(filter %.o,$^) -ldl -o $@
$(GPU_DENIED): $B/tests/gpu/denied/denied.o ; $(call run,LINK)$(CC) $(LDFLAGS) -shared $^ -ldl -o $@
$B/tests/gpu/plugin/%.o: CFLAGS := $(filter-out -I.,$(CFLAGS)) -Ikernels
$(GPU_PLUGIN): $B/tests/gpu/plugin/plugin.o
	$(call run,LINK)$(CC) $(LDFLAGS) -shared $(if $(SAN),,-Wl,-z,defs) $^ -o $@
	@cd $(@D) && for n in past future partial other nameless; do ln -sf $(@F) libkvfs-$$n.so.1; done && echo text >libkvfs-broken.so.1
$(GPU_THREAD): $B/tests/gpu/plugin/threaded.o ; $(call run,LINK)$(CC) $(LDFLAGS) -shared $^ -o $@
$B/tests/gpu/test_plugin: | $(GPU_PLUGIN) $(GPU_THREAD)
ifneq ($(NVCC),)
$B/tests/gpu/test_standin: | $B/tests/gpu/abi-cuda.o
$B/tests/gpu/abi-cuda.o: tests/gpu/abi.cu tests/gpu/abi.h kernels/cuda/same.cuh ; @mkdir -p $(@D)
	$(call run,NVCC)$(NVCC) -std=c++17 -I. -c $< -o $@
endif
# In the bundle all programs and libkvfs find their libraries below its folder by themselves.  An
# LD_LIBRARY_PATH would hand these libraries to Python as well.  DT_RPATH, unlike DT_RUNPATH, holds for
# libraries of libraries and for plug-ins.
GPU_RPATH  := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN
$(GPU_UNIT): LDFLAGS += $(GPU_RPATH)/../../lib'
$B/tests/gpu/bundle/kvfs: LDFLAGS += $(GPU_RPATH)/lib'
$B/tests/gpu/bundle/libkvfs.so: LDFLAGS += $(GPU_RPATH)'
$(GPU_UNIT:=.o): tests/gpu/kernels.ptx
$(GPU_UNIT): | $B/tests/gpu/libcuda.so.1
$B/tests/gpu/bench: $(call objs,tools/bench/report.c)
test-programs: $(GPU_DENIED) $(GPU_OWN)
gpu-bundle: all $(GPU_UNIT) $(GPU_DENIED) $(GPU_OWN)  ## what a machine with a GPU needs, in one file
	@tests/gpu/bundle.sh $B $(GPU_BUNDLE) && ls -l $(GPU_BUNDLE)
gpu-probe gpu-test gpu-bench gpu-harm gpu-ttft gpu-layouts gpu-sanitize:  ## on an NVIDIA GPU, from the bundle: one part of run.sh
	@tests/gpu/gpu.sh $(GPU_BUNDLE) $@
.PHONY: gpu-bundle gpu-probe gpu-test gpu-bench gpu-harm gpu-ttft gpu-layouts gpu-sanitize
