// SPDX-License-Identifier: Apache-2.0
// prompt.rs - the blocks of a prompt, from Rust: what the cache has is loaded,
// the rest is computed and saved.
//
//   bindgen /usr/local/include/kvfs.h -o examples/kvfs.rs
//   rustc --edition 2021 examples/prompt.rs -L /usr/local/lib -l kvfs
//   ./prompt /kvfs
#[allow(non_upper_case_globals, non_camel_case_types, non_snake_case, dead_code)]
#[allow(clippy::all)]
mod kvfs {
    include!("kvfs.rs");
}
use kvfs::*;
use std::ffi::{CStr, CString};
use std::mem::{size_of, zeroed};
use std::os::raw::c_void;
use std::ptr::null_mut;

const TOKENS: usize = 16; // in a block
const BYTES: usize = 65536; // of a block
const BLOCKS: usize = 8; // in the prompt
const LAYOUT: &str = r#"{"tensors": [{"name": "kv", "dtype": "BF16",
    "shape": [4, 2, 16, 2, 128]}], "tokens": 16, "layers": 0}"#;

fn check(what: &str, r: i64) -> Result<usize, String> {
    match r {
        0.. => Ok(r as usize),
        _ => Err(format!("{what}: {}", std::io::Error::from_raw_os_error(-r as i32))),
    }
}

/// A session with a space and a pool on `memory`; ended in the right order.
struct Cache {
    session: *mut kvfs_session,
    space: *mut kvfs_space,
    pool: *mut kvfs_pool,
}

impl Cache {
    fn open(path: &str, memory: &mut [u8]) -> Result<Cache, String> {
        let mut c = Cache { session: null_mut(), space: null_mut(), pool: null_mut() };
        let (path, name) = (CString::new(path).unwrap(), CString::new("example.rs").unwrap());
        let (layout, tensor) = (CString::new(LAYOUT).unwrap(), CString::new("kv").unwrap());
        let device = CString::new("host").unwrap();
        // SAFETY: every pointer is to something that outlives the call, and
        // `memory` outlives the pool.
        unsafe {
            check("open", kvfs_open(path.as_ptr(), &mut c.session) as i64)?;
            if check("connected", kvfs_connected(c.session) as i64)? != 1 {
                return Err(format!("no kvfs answers at {}", path.to_string_lossy()));
            }
            let flags = KVFS_CREATE;
            check("space", kvfs_space_open(c.session, name.as_ptr(), layout.as_ptr(), flags,
                                           &mut c.space) as i64)?;
            let mut view: kvfs_view = zeroed();
            view.tensor = tensor.as_ptr();
            view.base = memory.as_mut_ptr() as *mut c_void;
            view.block_stride = BYTES as u64;
            view.bytes = BYTES as u64;
            view.count = 1;
            let mut desc: kvfs_pool_desc = zeroed();
            desc.size = size_of::<kvfs_pool_desc>() as _;
            desc.device = device.as_ptr();
            desc.space = c.space;
            desc.views = &view;
            desc.n_views = 1;
            desc.pages = BLOCKS as u64;
            desc.pages_per_block = 1;
            check("pool", kvfs_pool_register(c.session, &desc, &mut c.pool) as i64)?;
        }
        Ok(c)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: these functions accept null, and the handles are not used again.
        unsafe {
            kvfs_pool_close(self.pool);
            kvfs_space_close(self.space);
            kvfs_close(self.session);
        }
    }
}

fn run(path: &str) -> Result<(), String> {
    let mut memory = vec![0u8; BLOCKS * BYTES];
    let tokens: Vec<u32> = (0..(BLOCKS * TOKENS) as u32).collect();
    let pages: Vec<i64> = (0..BLOCKS as i64).collect();
    let cache = Cache::open(path, &mut memory)?;
    let (loaded, hit, saved);
    // SAFETY: pointers outlive the calls; no page is used during its transfer.
    unsafe {
        let mut keys: Vec<kvfs_key> = vec![zeroed(); BLOCKS];
        check("keys", kvfs_key_chain(cache.space, null_mut(), tokens.as_ptr(), tokens.len() as _,
                                     null_mut(), 0, keys.as_mut_ptr(), BLOCKS as _) as i64)?;
        let mut query: kvfs_query = zeroed();
        query.space = cache.space;
        query.keys = keys.as_ptr();
        query.n = BLOCKS as _;
        hit = check("match", kvfs_match_tokens(&query, 1) as i64)? / TOKENS;
        query.n = hit as _;
        let (mut lease, mut xfer) = (null_mut(), null_mut());
        let mut opts: kvfs_opts = zeroed();
        opts.size = size_of::<kvfs_opts>() as _;
        check("acquire", kvfs_acquire(&query, 1, &opts, &mut lease) as i64)?;
        check("load", kvfs_load(cache.pool, lease, hit as _, pages.as_ptr(), &opts, &mut xfer) as i64)?;
        loaded = check("wait", kvfs_xfer_wait(xfer, kvfs_stage_KVFS_COPIED, u64::MAX) as i64)?;
        kvfs_xfer_free(xfer);
        kvfs_release(lease);
        for (i, block) in memory.chunks_mut(BYTES).enumerate().skip(hit) {
            block.fill(i as u8 + 1); // stand-in for the model
        }
        let mut meta: Vec<kvfs_meta> = vec![zeroed(); BLOCKS];
        for i in 0..BLOCKS {
            meta[i].position = i as u32;
            if i > 0 {
                meta[i].parent = keys[i - 1];
            }
        }
        check("save", kvfs_save(cache.pool, cache.space, keys.as_ptr().add(hit), meta.as_ptr().add(hit),
                                (BLOCKS - hit) as _, pages.as_ptr().add(hit), &opts, &mut xfer) as i64)?;
        saved = check("wait", kvfs_xfer_wait(xfer, kvfs_stage_KVFS_SEALED, u64::MAX) as i64)?;
        kvfs_xfer_free(xfer);
        drop(cache);
        let version = CStr::from_ptr(kvfs_version_text()).to_string_lossy();
        eprintln!("libkvfs {version}");
    }
    for (i, block) in memory.chunks(BYTES).enumerate() {
        if block.iter().any(|&b| b != i as u8 + 1) {
            return Err("wrong bytes".into());
        }
    }
    if loaded + saved != BLOCKS {
        return Err("not all blocks were saved".into());
    }
    println!("{loaded} blocks loaded, {saved} saved");
    Ok(())
}

fn main() {
    let path = std::env::args().nth(1).unwrap_or("/kvfs".into());
    if let Err(error) = run(&path) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
