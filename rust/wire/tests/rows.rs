//! Rules of single rows, versions and faulty snapshots.

use proa_wire::*;

fn outputs(keys: &[u64]) -> StepOutputs {
    let n = keys.len();
    StepOutputs {
        rows: Rows {
            request_key: keys.to_vec(),
            num_tokens: vec![1; n],
            token_ids: vec![5; n],
            finish: vec![0; n],
            stop_token: vec![NO_STOP_TOKEN; n],
        },
        ..StepOutputs::default()
    }
}

const VOCAB: u32 = 100;

#[test]
fn a_good_message_has_no_faults() {
    let mut step = outputs(&[3, 1, 2]);
    step.rows.finish = vec![0, 16, 4];
    step.rows.num_tokens[1] = 0;
    step.rows.token_ids = vec![0, VOCAB - 1];
    step.sampled_logprobs = Some(SampledLogprobs {
        lp_k: vec![1, 0, -1],
        lp_value: vec![f32::NAN],
        lp_rank: vec![0],
        lp_top_ids: vec![VOCAB - 1],
        lp_top_values: vec![f32::NEG_INFINITY],
    });
    step.details = vec![Detail {
        row: 2,
        message: String::new(),
    }];
    assert!(
        row_faults(&step, VOCAB).is_empty(),
        "NaN, -inf and rank 0 are legal"
    );
}

#[test]
fn each_rule_harms_its_own_row() {
    let mut step = outputs(&[1, 2, 3]);
    step.rows.token_ids[1] = VOCAB;
    assert_eq!(row_faults(&step, VOCAB).rows, [1]);

    let mut step = outputs(&[1, 2, 3]);
    step.rows.finish[2] = 17;
    assert_eq!(row_faults(&step, VOCAB).rows, [2]);

    let mut step = outputs(&[1, 2]);
    step.rows.num_tokens = vec![0, 2];
    assert_eq!(row_faults(&step, VOCAB).rows, [0]);

    assert_eq!(
        row_faults(&outputs(&[9, 4, 9]), VOCAB).rows,
        [0, 2],
        "every row of a doubled key"
    );

    let mut step = outputs(&[1, 2]);
    step.details = vec![Detail {
        row: 2,
        message: String::new(),
    }];
    let faults = row_faults(&step, VOCAB);
    assert_eq!((faults.rows.len(), faults.details), (0, vec![0]));
}

#[test]
fn ranks_and_top_ids_are_those_of_their_row() {
    let logprobs = SampledLogprobs {
        lp_k: vec![2, -1, 1],
        lp_value: vec![0.0; 2],
        lp_rank: vec![1, VOCAB],
        lp_top_ids: vec![1, 2, 3],
        lp_top_values: vec![0.0; 3],
    };
    let check = |change: fn(&mut SampledLogprobs)| {
        let mut step = outputs(&[1, 2, 3]);
        let mut logprobs = logprobs.clone();
        change(&mut logprobs);
        step.sampled_logprobs = Some(logprobs);
        row_faults(&step, VOCAB).rows
    };
    assert_eq!(check(|_| ()), [] as [u32; 0]);
    assert_eq!(check(|logprobs| logprobs.lp_rank[1] = VOCAB + 1), [2]);
    assert_eq!(check(|logprobs| logprobs.lp_top_ids[1] = VOCAB), [0]);
    assert_eq!(check(|logprobs| logprobs.lp_top_ids[2] = VOCAB), [2]);
}

#[test]
fn prompt_chunks_are_checked_too() {
    let mut step = StepOutputs {
        prompt_logprobs: PromptLogprobs {
            plp_key: vec![1, 2],
            plp_start: vec![1, 1],
            plp_count: vec![2, 1],
            plp_k: vec![1, 2],
            plp_value: vec![0.0; 3],
            plp_rank: vec![1, 2, 3],
            plp_top_ids: vec![1, 2, 3, VOCAB],
            plp_top_values: vec![0.0; 4],
        },
        ..StepOutputs::default()
    };
    assert_eq!(row_faults(&step, VOCAB).prompt_chunks, [1]);
    step.prompt_logprobs.plp_rank[0] = VOCAB + 1;
    assert_eq!(row_faults(&step, VOCAB).prompt_chunks, [0, 1]);
}

#[test]
fn a_higher_minor_may_add_columns_and_keys() {
    let mut frames = encode(&Message::Abort(Abort {
        request_key: vec![1],
        cause: vec![1],
    }));
    let plain = frames.clone();
    // One more column and one more key, by hand: {"new": nil, "columns": [.., "odd"]}.
    frames[1] = [
        b"\x82\xa3new\xc0\xa7columns\x93".as_slice(),
        &frames[1][10..],
        b"\xa3odd",
    ]
    .concat();
    frames.push(b"x".to_vec());
    let bad = decode(Direction::FromFrontEnd, 0, &frames).expect_err("same minor");
    assert_eq!(bad.reason, Reason::Columns);
    let read = decode(Direction::FromFrontEnd, 1, &frames).expect("higher minor");
    assert_eq!(encode(&read), plain);
}

#[test]
fn a_faulty_snapshot_leaves_the_rows() {
    let mut step = outputs(&[1]);
    step.stats = Stats::Present(Box::default());
    let mut frames = encode(&Message::StepOutputs(Box::new(step)));
    let at = frames[1]
        .windows(3)
        .position(|window| window == b"seq")
        .expect("a key of the snapshot");
    frames[1][at] = b'z';
    let Ok(Message::StepOutputs(read)) = decode(Direction::FromEngine, 0, &frames) else {
        panic!("the rows are good");
    };
    assert_eq!(read.stats, Stats::Faulty);
    assert_eq!(read.rows, outputs(&[1]).rows);
}

#[test]
fn keys_of_a_refused_message_can_be_answered() {
    let mut add = AddRequests::default();
    for request_key in [4, 5] {
        add.push(&RequestRow {
            request_key,
            prompt_ids: &[1],
            ..RequestRow::default()
        });
    }
    let mut frames = encode(&Message::AddRequests(Box::new(add)));
    frames.last_mut().expect("flags").push(0);
    let bad = decode(Direction::FromFrontEnd, 0, &frames).expect_err("a column of odd length");
    assert_eq!(
        (bad.reason, bad.kind, bad.request_keys),
        (Reason::Columns, Some(Kind::AddRequests), vec![4, 5])
    );
}
