#![allow(missing_docs)]
use runnel_lab::{
    consistency::*,
    scene::*,
    updater::{self, Order},
};
use std::sync::atomic::AtomicBool;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args[1] == "--updater" {
        updater::run(&Order::from_argument(&args[2]).unwrap(), std::io::stdout()).unwrap();
        return;
    }
    let settings = Settings {
        runnel: args[1].clone().into(),
        object: args[2].clone().into(),
        seconds: args[3].parse().unwrap(),
        bump: args[4] == "on",
        rate: args.get(5).map_or(1100, |r| r.parse().unwrap()),
        scene: SceneSpec { routes: 2500, seed: 7 },
        updater: (std::env::current_exe().unwrap(), vec!["--updater".into()]),
    };
    let stop = AtomicBool::new(false);
    match run(&settings, &stop, |t| eprintln!("{t:?}")) {
        Ok(o) => println!("{}", serde_json::to_string_pretty(&o).unwrap()),
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1)
        }
    }
}
