# frozen_string_literal: true

require "openssl"

# An authority with a certificate for a server at 127.0.0.1 and one for its client, as files.
class Certificates
  def initialize(directory)
    @directory = directory
    @authority = key
    @authority_certificate = issue("ca", "CN=authority", @authority, [["basicConstraints", "CA:TRUE", true]])
    %w[server client].each { |name| certify(name) }
  end

  def path(name)
    File.join(@directory, name)
  end

  private

  def certify(name)
    own = key
    File.write(path("#{name}.key"), own.private_to_pem)
    issue(name, "CN=#{name}", own, [["subjectAltName", "IP:127.0.0.1", false]])
  end

  def key
    OpenSSL::PKey::EC.generate("prime256v1")
  end

  def issue(name, subject, key, extensions)
    certificate = OpenSSL::X509::Certificate.new
    certificate.version = 2
    certificate.serial = OpenSSL::BN.rand(64)
    certificate.subject = OpenSSL::X509::Name.parse(subject)
    certificate.issuer = (@authority_certificate || certificate).subject
    certificate.public_key = key
    certificate.not_before = Time.now - 60
    certificate.not_after = Time.now + 3600
    factory = OpenSSL::X509::ExtensionFactory.new
    extensions.each { |extension| certificate.add_extension(factory.create_extension(*extension)) }
    certificate.sign(@authority, OpenSSL::Digest.new("SHA256"))
    File.write(path("#{name}.crt"), certificate.to_pem)
    certificate
  end
end
