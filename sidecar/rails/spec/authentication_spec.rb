# frozen_string_literal: true

require "socket"
require "tmpdir"

RSpec.describe Jobqueue::Sidecar::Authentication do
  around do |example|
    Dir.mktmpdir { |directory| (@directory = directory) && example.run }
  end

  def file(name, content)
    File.join(@directory, name).tap { |path| File.binwrite(path, content) }
  end

  def authentication(token: nil, key: nil, now: 1_000_000)
    env = { "JOBQUEUE_TOKEN_FILE" => token && file("token", token), "JOBQUEUE_HMAC_KEY_FILE" => key && file("key", key) }
    described_class.new(Jobqueue::Sidecar::Settings.new(env.compact), now: -> { now })
  end

  def signed(key, body, timestamp: 1_000_000, path: "/jobs/execute")
    { "PATH_INFO" => path, "HTTP_X_JOBQUEUE_TIMESTAMP" => timestamp.to_s,
      "HTTP_X_JOBQUEUE_SIGNATURE" => "sha256=#{OpenSSL::HMAC.hexdigest("SHA256", key, "#{timestamp}.#{path}.#{body}")}" }
  end

  # A connection to a listener on `bind`, as the server has it; the client's end is closed at once if it is `gone`.
  def accepted(bind, to: "127.0.0.1", gone: false)
    TCPServer.open(bind, 0) do |server|
      client = TCPSocket.new(to, server.addr[1])
      connection = server.accept
      if gone
        client.setsockopt(Socket::SOL_SOCKET, Socket::SO_LINGER, [1, 0].pack("ii"))
        client.close
        eventually("the reset is here") { peer_of(connection).nil? }
      end
      yield connection
    ensure
      [client, connection].compact.each(&:close)
    end
  end

  def peer_of(connection)
    connection.remote_address
  rescue Errno::ENOTCONN
    nil
  end

  it "without a secret serves loopback addresses and nobody else" do
    auth = authentication
    %w[127.0.0.1 ::1].each { |address| expect(auth.refusal({ "REMOTE_ADDR" => address }, "")).to be_nil }
    ["10.0.0.7", "127.0.0.6", "", nil].each do |address|
      expect(auth.refusal({ "REMOTE_ADDR" => address, "HTTP_X_FORWARDED_FOR" => "127.0.0.1" }, "")).to match(/loopback/)
    end
  end

  it "without a secret serves connections to a loopback address and no other, whatever Puma says of a peer that is gone" do
    auth = authentication
    refusal = ->(socket) { auth.refusal({ "REMOTE_ADDR" => "127.0.0.1", "puma.socket" => socket }, "") }
    accepted("0.0.0.0") { |socket| expect(refusal[socket]).to be_nil }
    accepted("0.0.0.0", gone: true) { |socket| expect(refusal[socket]).to be_nil }
    own = Socket.ip_address_list.find { |address| address.ipv4? && !address.ipv4_loopback? }
    skip "this machine has no address but loopback" if own.nil?
    accepted("0.0.0.0", to: own.ip_address, gone: true) { |socket| expect(refusal[socket]).to match(/loopback/) }
    ours, theirs = UNIXSocket.pair
    expect(refusal[ours]).to be_nil
  ensure
    [ours, theirs].compact.each(&:close)
  end

  it "takes any of the tokens of its file and no other, from wherever" do
    auth = authentication(token: "old\nnew\n")
    bearer = ->(token) { auth.refusal({ "REMOTE_ADDR" => "10.0.0.7", "HTTP_AUTHORIZATION" => token }, "") }
    expect([bearer["Bearer old"], bearer["bearer new"]]).to eq([nil, nil])
    ["Bearer ol", "Bearer newer", "Bearer ", "Basic old", "old", nil].each { |wrong| expect(bearer[wrong]).to be_a(String) }
    # A secret shuts loopback too.
    expect(auth.refusal({ "REMOTE_ADDR" => "127.0.0.1" }, "")).to eq("no bearer token")
  end

  it "takes a signature over the time, the path and the very bytes of the body" do
    auth = authentication(key: "k3y\n")
    body = "{\"class\":\"Ä\"}".b
    expect(auth.refusal(signed("k3y", body), body)).to be_nil
    expect(auth.refusal(signed("k3y", body), "#{body} ")).to eq("wrong signature")
    expect(auth.refusal(signed("other", body), body)).to eq("wrong signature")
    expect(auth.refusal(signed("k3y", body).merge("PATH_INFO" => "/jobs/death"), body)).to eq("wrong signature")
    expect(auth.refusal(signed("k3y", body).merge("QUERY_STRING" => "a=1"), body)).to eq("wrong signature")
    expect(auth.refusal(signed("k3y", body, path: "/x?a=1").merge("PATH_INFO" => "/x", "QUERY_STRING" => "a=1"), body)).to be_nil
    expect(auth.refusal({}, body)).to eq("no signature")
    expect(auth.refusal(signed("k3y", body).merge("HTTP_X_JOBQUEUE_TIMESTAMP" => "1e6"), body)).to match(/no number/)
  end

  it "believes the headers that decide about a job when they are signed too, and does not know them otherwise" do
    auth = authentication(key: "other\nk3y\n")
    headers = { "HTTP_X_JOB_LAST_ATTEMPT" => "true", "HTTP_X_JOB_TIMEOUT" => "60.000" }
    request = signed("k3y", "{}").merge(headers)
    digest = OpenSSL::HMAC.hexdigest("SHA256", "k3y", "#{request["HTTP_X_JOBQUEUE_SIGNATURE"]}.true.60.000")
    whole = request.merge("HTTP_X_JOBQUEUE_HEADERS_SIGNATURE" => "sha256=#{digest}")
    believed = whole.dup
    expect([auth.refusal(believed, "{}"), believed.slice(*headers.keys)]).to eq([nil, headers])
    headers.each_key do |name|
      expect(auth.refusal(whole.merge(name => "1"), "{}")).to eq("wrong signature of the headers")
      expect(auth.refusal(whole.except(name), "{}")).to eq("wrong signature of the headers")
    end
    # As workers before did it, or somebody on the way.
    unsigned = request.dup
    expect([auth.refusal(unsigned, "{}"), unsigned.slice(*headers.keys)]).to eq([nil, {}])
  end

  it "refuses a signed request that is older or newer than the bound" do
    auth = authentication(key: "k3y")
    { 999_700 => nil, 1_000_300 => nil, 999_699 => /300 s/, 1_000_301 => /300 s/ }.each do |timestamp, refusal|
      expect(auth.refusal(signed("k3y", "{}", timestamp: timestamp), "{}")).to match_refusal(refusal)
    end
  end

  it "tells the time of our clock only to who knows the key" do
    auth = authentication(key: "k3y")
    expect(auth.refusal(signed("wrong", "{}", timestamp: 1), "{}")).to eq("wrong signature")
  end

  it "takes either when both are set, so that one can be exchanged for the other" do
    auth = authentication(token: "t0ken", key: "k3y")
    expect(auth.refusal({ "HTTP_AUTHORIZATION" => "Bearer t0ken" }, "{}")).to be_nil
    expect(auth.refusal(signed("k3y", "{}"), "{}")).to be_nil
    expect(auth.refusal({}, "{}")).to eq("no bearer token; no signature")
  end

  it "compares digests with Rack's constant-time comparison, all candidates each time" do
    auth = authentication(token: "right\nother\nthird")
    compared = []
    allow(Rack::Utils).to receive(:secure_compare).and_wrap_original do |original, a, b|
      compared << [a.bytesize, b.bytesize]
      original.call(a, b)
    end
    auth.refusal({ "HTTP_AUTHORIZATION" => "Bearer right" }, "")
    # The whole file and its three lines; 64 is the length of a digest, whatever the length of the token.
    expect(compared).to eq([[64, 64]] * 4)
  end

  RSpec::Matchers.define(:match_refusal) do |expected|
    match { |actual| expected.nil? ? actual.nil? : actual&.match?(expected) }
  end

  describe Jobqueue::Sidecar::Secret do
    it "has the bytes of a key that the worker signs with, whatever they are" do
      key = "\0\v\xffk\0y\v\0".b
      expect(described_class.new(file("secret", " \t\r\n\f#{key}\f\n".b)).candidates).to eq([key])
    end

    it "sees a replaced file, and keeps what it knew while the file is away" do
      time = 0
      path = file("secret", "first")
      secret = described_class.new(path, clock: -> { time })
      expect(secret.candidates).to eq(["first"])
      File.write(path, "second")
      expect(secret.candidates).to eq(["first"])
      time += described_class::MAX_AGE
      expect(secret.candidates).to eq(["second"])
      File.delete(path)
      time += described_class::MAX_AGE
      expect(secret.candidates).to eq(["second"])
    end
  end
end
